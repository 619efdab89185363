//! A file or block device becomes larger under its device.

use spillway_core::{Error, Grow};

use super::*;

fn grow(house: &House, device: &File, size: Option<u64>) -> Result<(), Error> {
    device.target(size)?;
    house.world.run(Answer::Pending(device.grow(size)))
}

#[test]
fn a_device_takes_the_new_size_when_it_is_asked_to_and_not_before() {
    let house = House::new(&[], Latency::Nvme);
    let device = Arc::new(File::new(house.disk.clone(), house.world.clone()));
    let seam = Seam::new(device.clone());
    let write = |at| house.world.run(seam.submit(Request::write(at, filled(7, 4096)))).result;
    let refusal = grow(&house, &device, Some(2 << 20)).unwrap_err().to_string();
    assert!(refusal.contains("give the block device or export its size first"), "{refusal}");
    house.disk.enlarge(2 << 20);
    assert_eq!((device.geometry().size, write(1 << 20)), (1 << 20, Err(Kind::NoSpace)));
    let refusal = grow(&house, &device, Some(3 << 20)).unwrap_err().to_string();
    assert!(refusal.contains("there are 2097152 bytes"), "{refusal}");
    grow(&house, &device, Some(2 << 20)).unwrap();
    assert_eq!((device.geometry().size, write(1 << 20)), (2 << 20, Ok(())));
    house.disk.enlarge(5 << 20);
    grow(&house, &device, None).unwrap();
    assert_eq!((device.geometry().size, write((5 << 20) - 4096)), (5 << 20, Ok(())));
    grow(&house, &device, None).expect("it has that size");
}

/// Or the length of a file would not be there after a crash.
#[test]
fn the_new_size_is_made_durable_first() {
    let fault = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Fail(Kind::Io), sticky: false };
    let house = House::new(&[fault], Latency::Nvme);
    let device = File::new(house.disk.clone(), house.world.clone());
    house.disk.enlarge(2 << 20);
    assert_eq!(grow(&house, &device, None).unwrap_err().kind, Kind::Io);
    assert_eq!(device.geometry().size, 1 << 20);
}
