//! Memory of the machine, registered with the HCA.

use core_ib::LKey;
use core_ib::platform::{DmaAddr, DmaBuf, Platform};
use core_ib::verbs::{Access, Device, Mr, MrInit, PdHandle, Sge, VerbsError};

/// DMA memory and a region over all of it, whose addresses are not those of the bus.
#[derive(Debug)]
pub struct Buffer<'m, P: Platform> {
    /// The memory.
    pub memory: DmaBuf<'m, P>,
    /// The region.
    pub mr: Mr,
    /// Address of the first byte, in the region's space.
    pub iova: u64,
}

impl<'m, P: Platform> Buffer<'m, P> {
    /// Page size of its region, as a logarithm.
    pub const PAGE: u8 = 12;
    /// Where regions begin, unless said otherwise: no bus has memory there.
    pub const IOVA: u64 = 0x0007_1234_5000;

    /// `len` bytes with these rights, in `pd`.
    pub fn new<D: Device>(
        machine: &'m P,
        hca: &D,
        pd: PdHandle,
        len: usize,
        access: Access,
    ) -> Self {
        let memory = DmaBuf::new(machine, len, 4096).unwrap();
        let mr = Self::register(hca, pd, &memory, Self::IOVA, len as u64, access).unwrap();
        let iova = Self::IOVA;
        Self { memory, mr, iova }
    }

    /// Registers `length` bytes of `memory` as `iova`, whose offset in a page is where the region begins.
    pub fn register<D: Device>(
        hca: &D,
        pd: PdHandle,
        memory: &DmaBuf<'_, P>,
        iova: u64,
        length: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let pages = Self::pages(memory);
        let init = MrInit {
            iova,
            length,
            pages: &pages,
            page_shift: Self::PAGE,
            access,
        };
        // SAFETY: DMA memory that is dropped is leaked, so that it outlives every region. Access is volatile.
        unsafe { hca.reg_mr(pd, &init) }
    }

    /// Where the pages of `memory` are.
    pub fn pages(memory: &DmaBuf<'_, P>) -> Vec<DmaAddr> {
        let starts = (0..memory.len() as u64).step_by(1 << Self::PAGE);
        starts.map(|start| memory.addr().plus(start)).collect()
    }

    /// Key for local requests.
    pub fn lkey(&self) -> LKey {
        self.mr.lkey
    }

    /// `length` bytes from `offset`.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.iova + offset,
            length,
            lkey: self.mr.lkey,
        }
    }

    /// Stores `bytes` at `offset`.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes).unwrap();
    }

    /// Loads `len` bytes from `offset`.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.copy_out(offset, &mut bytes).unwrap();
        bytes
    }
}
