//! The way by VFIO: an IOMMU of type 1 in between, messages or the pin, and the kernel to clean up.

use crate::interrupts::{Source, borrow, event};
use crate::machine::{Link, Sources};
use crate::pages::{HUGE, Pages};
use crate::pci::{Binding, COMMAND, COMMAND_ON, Function, INTX_OFF, clear_of, windows};
use crate::{Error, Registers};
use core_ib::platform::Vectors;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_INTX_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};
use vmm_sys_util::eventfd::EventFd;

const DRIVER: &str = "vfio-pci";
/// Where the device sees its memory at the lowest: above what old bridges and interrupts take.
const LOWEST: u64 = 1 << 32;

/// See the module. Dropped, the device is stopped, and reset if it can be; then its memory is unmapped.
pub(crate) struct Vfio {
    device: Arc<VfioDevice>,
    container: Arc<VfioContainer>,
    function: Function,
    pages: Pages,
    /// Where the device sees them.
    at: u64,
    /// The last that is dropped.
    _binding: Binding,
}

fn told(what: &'static str) -> impl FnOnce(VfioError) -> Error {
    move |error| Error::Vfio { what, error }
}

impl Vfio {
    /// Takes the device, and lends it `len` bytes of memory.
    pub fn open(function: Function, len: usize, huge: bool) -> Result<Self, Error> {
        if function.iommu().is_none() {
            return Err(Error::NoIommu(function.slot));
        }
        function.lock()?;
        let pages = Pages::new(len, huge)?;
        let at = clear_of(&windows()?, LOWEST, pages.len() as u64, HUGE as u64);
        let at = at.ok_or(Error::NoPlace { len })?;
        let binding = Binding::new(&function, DRIVER, &["vfio-pci", "vfio_iommu_type1"])?;
        let container = VfioContainer::new(None).map_err(told("VFIO"))?;
        let container = Arc::new(container);
        let device = VfioDevice::new(&function.folder(), container.clone(), false);
        let device = device.map_err(told("the device of VFIO"))?;
        let made = Self {
            device: Arc::new(device),
            container,
            function,
            pages,
            at,
            _binding: binding,
        };
        // SAFETY: nobody refers to the pages but by raw pointers; they stay until they are unmapped, in `drop`.
        let mapped = unsafe {
            made.container
                .vfio_dma_map(made.at, made.pages.len(), made.pages.start())
        };
        mapped.map_err(told("memory for the device"))?;
        let command = made.config_read32(COMMAND) & 0xffff;
        made.config_write32(COMMAND, (command | COMMAND_ON) & !INTX_OFF);
        Ok(made)
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        let command = self.config_read32(COMMAND) & 0xffff;
        self.config_write32(COMMAND, command & !COMMAND_ON);
        if let Err(error) = self.container.vfio_dma_unmap(self.at, self.pages.len()) {
            log::debug!("{}: unmapping its memory: {error}", self.function.slot);
        }
    }
}

impl Link for Vfio {
    fn function(&self) -> &Function {
        &self.function
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn places(&self) -> Vec<u64> {
        let last = self.pages.len() / HUGE;
        (0..last)
            .map(|number| self.at + (number * HUGE) as u64)
            .collect()
    }

    fn map(&self, bar: u8, at: u64, len: usize) -> io::Result<Registers> {
        let bar = u32::from(bar);
        if self.device.get_region_flags(bar) & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Registers::map(&*self.device, self.device.get_region_offset(bar) + at, len)
    }

    /// Who the device is comes from the bus: VFIO gives it from memory, even if the device is gone.
    fn config_read32(&self, offset: u16) -> u32 {
        if offset == 0 {
            return self.function.config_read32(offset);
        }
        let mut word = [0xff; 4];
        self.device
            .region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut word, offset.into());
        u32::from_le_bytes(word)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        let word = value.to_le_bytes();
        self.device
            .region_write(VFIO_PCI_CONFIG_REGION_INDEX, &word, offset.into());
    }

    fn vectors(&self, want: u16) -> io::Result<(Vectors, Sources)> {
        let there = self
            .device
            .get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX)
            .map_or(0, |irq| irq.count);
        let count = there.min(want.into());
        if count > 0 {
            let events: io::Result<Vec<_>> = (0..count).map(|_| event().map(Arc::new)).collect();
            let events = events?;
            let all = events.iter().map(|event| &**event).collect();
            match self.device.enable_msix(all) {
                Ok(()) => {
                    let sources = events.into_iter().map(|event| event as Arc<dyn Source>);
                    return Ok((
                        Vectors::Msix {
                            count: count as u16,
                        },
                        sources.collect(),
                    ));
                }
                Err(error) => log::warn!("{}: no messages: {error}", self.function.slot),
            }
        }
        let pin = event()?;
        let enabled = self.device.enable_irq(VFIO_PCI_INTX_IRQ_INDEX, vec![&pin]);
        enabled.map_err(io::Error::other)?;
        let device = self.device.clone();
        Ok((Vectors::Intx, vec![Arc::new(Pin { event: pin, device })]))
    }

    fn free_vectors(&self, vectors: Vectors) {
        let kind = match vectors {
            Vectors::Intx => VFIO_PCI_INTX_IRQ_INDEX,
            Vectors::Msix { .. } => VFIO_PCI_MSIX_IRQ_INDEX,
        };
        if let Err(error) = self.device.disable_irq(kind) {
            log::warn!(
                "{}: its interrupts are not off: {error}",
                self.function.slot
            );
        }
    }
}

/// The pin, which the kernel masks when it strikes.
struct Pin {
    event: EventFd,
    device: Arc<VfioDevice>,
}

impl Source for Pin {
    fn file(&self) -> BorrowedFd<'_> {
        borrow(&self.event)
    }
    fn take(&self) -> io::Result<()> {
        self.event.read().map(drop)
    }
    fn rearm(&self) -> io::Result<()> {
        let unmasked = self.device.unmask_irq(VFIO_PCI_INTX_IRQ_INDEX);
        unmasked.map_err(io::Error::other)
    }
}
