"""Overlapping partial writes over several connections, checked sector by sector.

Each write fills its sectors with its own tag. A sector must at any time be wholly one write's, and at the end one that
no later write replaced: no other write to that sector may have begun after the found one had been answered.
"""

import itertools
import random
import struct
import sys
import threading

import nbd

SECTOR = 512
AREA = 96 * 1024
CONNECTIONS = 4
IN_FLIGHT = 8
WRITES = 1500
SECTORS_MAX = 24

uri, seed = sys.argv[1], int(sys.argv[2])
ticks = itertools.count(1)
writes = {}  # tag -> [first sector, end sector, begun, answered]
failures = []


def tagged(tag, sectors):
    return bytearray(struct.pack("<QQ", tag, tag ^ 0xFFFFFFFF) * (SECTOR // 16) * sectors)


def tags_of(data):
    for at in range(0, len(data), SECTOR):
        sector = bytes(data[at : at + SECTOR])
        tag = struct.unpack_from("<Q", sector)[0]
        if sector not in (bytes(SECTOR), bytes(tagged(tag, 1))):
            failures.append(f"a sector is a mixture: {sector[:32].hex()}...")
        yield tag


def begin(handle, chance, tag):
    count = chance.randint(1, SECTORS_MAX)
    first = chance.randint(0, AREA // SECTOR - count)
    write = [first, first + count, next(ticks), None]
    writes[tag] = write

    def answered(error):
        write[3] = next(ticks)
        if error.value:
            failures.append(f"write {tag} failed: {error.value}")
        return 1

    buffer = nbd.Buffer.from_bytearray(tagged(tag, count))
    handle.aio_pwrite(buffer, first * SECTOR, completion=answered)


def look(handle, chance):
    count = chance.randint(1, SECTORS_MAX)
    first = chance.randint(0, AREA // SECTOR - count)
    list(tags_of(handle.pread(count * SECTOR, first * SECTOR)))


def work(number):
    try:
        chance = random.Random(seed * 1000 + number)
        handle = nbd.NBD()
        handle.connect_uri(uri)
        assert handle.can_multi_conn()
        for n in range(WRITES):
            begin(handle, chance, 1 + number + n * CONNECTIONS)
            while handle.aio_in_flight() >= IN_FLIGHT:
                handle.poll(-1)
            if n % 16 == 0:
                look(handle, chance)
        while handle.aio_in_flight() > 0:
            handle.poll(-1)
        handle.shutdown()
    except Exception as why:
        failures.append(f"connection {number}: {why!r}")


def check_last():
    handle = nbd.NBD()
    handle.connect_uri(uri)
    for sector, tag in enumerate(tags_of(handle.pread(AREA, 0))):
        touching = {t: w for t, w in writes.items() if w[0] <= sector < w[1]}
        if tag == 0 and not touching:
            continue
        if tag not in touching:
            failures.append(f"sector {sector} holds {tag}, which nobody wrote there")
            continue
        later = [t for t, w in touching.items() if w[2] > touching[tag][3]]
        if later:
            failures.append(f"sector {sector} holds {tag}, although {later} began after it was answered")


threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not failures:
    check_last()
for failure in failures[:10]:
    print(f"seed {seed}: {failure}", file=sys.stderr)
sys.exit(1 if failures else 0)
