//! The way by `uio_pci_generic`: huge pages at their physical addresses, registers and configuration space from sysfs, and
//! the pin. Nothing keeps the device to its memory.
//!
//! When the process ends, however it does, the kernel takes bus mastering from the device as soon as its file is closed.
//! Until then the pages must stay the process's: their file is opened before that one, and Linux closes in the reverse
//! order. A HCA that is in the middle of a write may be faster.

use crate::interrupts::Source;
use crate::machine::{Link, Sources};
use crate::pages::Pages;
use crate::pci::{Binding, COMMAND, COMMAND_ON, Function, INTX_OFF};
use crate::{Error, Registers};
use core_ib::platform::Vectors;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

const DRIVER: &str = "uio_pci_generic";

/// See the module. Dropped, the device is stopped.
pub(crate) struct Uio {
    device: Arc<Device>,
    places: Vec<u64>,
    pages: Pages,
    /// The last that is dropped.
    _binding: Binding,
}

/// The device, and its pin, which the kernel turns off when it strikes.
struct Device {
    file: File,
    function: Function,
}

impl Device {
    fn command(&self) -> u16 {
        self.function.config_read32(COMMAND) as u16
    }
}

impl Source for Device {
    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
    fn take(&self) -> io::Result<()> {
        // The count of all interrupts so far.
        let mut count = [0; 4];
        (&self.file).read_exact(&mut count)
    }
    fn rearm(&self) -> io::Result<()> {
        self.function
            .write_command(self.command() & !(INTX_OFF as u16));
        Ok(())
    }
}

impl Uio {
    /// Takes the device, and `len` bytes of memory for it.
    pub fn open(function: Function, len: usize) -> Result<Self, Error> {
        let translated = |kind: &String| kind != "identity";
        if function.iommu().is_some_and(|kind| translated(&kind)) {
            return Err(Error::BehindIommu(function.slot));
        }
        function.lock()?;
        let pages = Pages::new(len, true)?;
        let places = pages.physical()?;
        let binding = Binding::new(&function, DRIVER, &[DRIVER])?;
        let file = device_file(&function)?;
        let device = Device { file, function };
        device
            .function
            .write_command((device.command() | COMMAND_ON as u16) & !(INTX_OFF as u16));
        Ok(Self {
            device: Arc::new(device),
            places,
            pages,
            _binding: binding,
        })
    }
}

/// `/dev/uioN` of a device.
fn device_file(function: &Function) -> Result<File, Error> {
    let path = function.folder().join("uio");
    let told = |error| Error::File {
        path: path.clone(),
        error,
    };
    let entry = std::fs::read_dir(&path).map_err(told)?.flatten().next();
    let entry = entry.ok_or_else(|| told(io::ErrorKind::NotFound.into()))?;
    let path = PathBuf::from("/dev").join(entry.file_name());
    let file = OpenOptions::new().read(true).write(true).open(&path);
    file.map_err(|error| Error::File { path, error })
}

impl Drop for Uio {
    fn drop(&mut self) {
        let command = self.device.command();
        self.device
            .function
            .write_command(command & !(COMMAND_ON as u16));
    }
}

impl Link for Uio {
    fn function(&self) -> &Function {
        &self.device.function
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn places(&self) -> Vec<u64> {
        self.places.clone()
    }

    fn map(&self, bar: u8, at: u64, len: usize) -> io::Result<Registers> {
        let path = self.function().folder().join(format!("resource{bar}"));
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Registers::map(&file, at, len)
    }

    fn config_read32(&self, offset: u16) -> u32 {
        self.function().config_read32(offset)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        self.function().config_write32(offset, value);
    }

    fn vectors(&self, _: u16) -> io::Result<(Vectors, Sources)> {
        // One that struck before is forgotten; there may be none.
        self.device.rearm()?;
        Ok((Vectors::Intx, vec![self.device.clone()]))
    }

    fn free_vectors(&self, _: Vectors) {
        self.device
            .function
            .write_command(self.device.command() | INTX_OFF as u16);
    }
}
