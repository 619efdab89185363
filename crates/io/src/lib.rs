//! Workers, files, sockets, clock and memory of the operating system.
