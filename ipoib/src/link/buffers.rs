//! Frames in memory that the HCA reaches, and who has each of them.
//!
//! One piece of DMA memory, registered as one region, cut into frames of equal length. A frame is free, ours, or
//! posted; the program gets at the bytes of those alone that are ours, so that it never looks at memory that the HCA
//! may write, nor changes what the HCA reads.

use super::event::FrameId;
use crate::room::Room;
use core::ptr::NonNull;
use core_ib::platform::{DmaAddr, LetGo, Platform, RawDma};
use core_ib::verbs::{Access, Device, Mr, MrInit, PdHandle, Sge, VerbsError};

/// Pages of a region at most: the list of them is made on the stack.
const PAGES: usize = 64;
/// Frames begin at multiples of this: a cache line, for the sake of speed.
const ALIGN: usize = 64;

/// Who has a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// Nobody: it is on the free list, before this one.
    Free(u16),
    /// The program.
    Us,
    /// The HCA.
    Hca,
}

/// End of the free list.
const NONE: u16 = u16::MAX;

/// See the module.
pub(super) struct Buffers<'a, P: Platform> {
    raw: RawDma,
    machine: &'a P,
    mr: Mr,
    stride: usize,
    has: <&'a P as Room>::Of<Has>,
    free: u16,
    posted: u16,
}

// SAFETY: the memory belongs to this value alone (contract of `dma_alloc`), whichever context holds it; the rest is
// plain data and a shared reference to a `Sync` machine.
unsafe impl<P: Platform> Send for Buffers<'_, P> {}

impl<'a, P: Platform> Buffers<'a, P> {
    /// `count` free frames of at least `len` bytes, registered in `pd` with the rights `access`. Control context;
    /// blocks. On error nothing is left behind.
    pub(super) fn new<D: Device + ?Sized>(
        machine: &'a P,
        device: &D,
        pd: PdHandle,
        count: u16,
        len: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let count = count.min(NONE - 1);
        let stride = len.next_multiple_of(ALIGN);
        let total = stride.saturating_mul(usize::from(count));
        let page_shift = page_shift(device.query_device().page_sizes, total)?;
        let has = machine.table(usize::from(count), |at| {
            let next = at + 1;
            let last = next == usize::from(count);
            Has::Free(if last { NONE } else { next as u16 })
        })?;
        let raw = machine.dma_alloc(total, 1 << page_shift)?;
        let page = |at| raw.bus.plus((at as u64) << page_shift);
        let pages: [DmaAddr; PAGES] = core::array::from_fn(page);
        let used = pages
            .get(..total.div_ceil(1 << page_shift))
            .unwrap_or(&pages);
        let init = MrInit {
            iova: raw.bus.get(),
            length: total as u64,
            pages: used,
            page_shift,
            access,
        };
        // SAFETY: the memory is ours and mapped until `free` has deregistered the region; what the rights allow happens
        // only to frames that `post` gave away, which nothing else here touches.
        match unsafe { device.reg_mr(pd, &init) } {
            Ok(mr) => Ok(Self {
                raw,
                machine,
                mr,
                stride,
                has,
                free: if count == 0 { NONE } else { 0 },
                posted: 0,
            }),
            Err(error) => {
                // SAFETY: from `dma_alloc` of this machine, and the HCA does not know of it: registering failed.
                unsafe { machine.dma_free(raw) };
                Err(error)
            }
        }
    }

    /// Gives region and memory back. Control context; blocks. On error the memory is not given back.
    pub(super) fn free<D: Device + ?Sized>(self, device: &D) -> Result<(), VerbsError> {
        device.dereg_mr(self.mr.handle)?;
        // SAFETY: the region is gone, so the HCA has no way to the memory.
        let _: LetGo = unsafe { LetGo::claim() };
        // SAFETY: from `dma_alloc` of this machine, and the HCA has let go.
        unsafe { self.machine.dma_free(self.raw) };
        Ok(())
    }

    /// Bytes of a frame.
    pub(super) const fn frame_len(&self) -> usize {
        self.stride
    }

    /// How many frames the HCA has.
    pub(super) const fn posted(&self) -> u16 {
        self.posted
    }

    fn place(&mut self, frame: FrameId) -> Option<&mut Has> {
        self.has.get_mut(usize::from(frame.0))
    }

    /// Takes a free frame: it is ours.
    pub(super) fn take(&mut self) -> Option<FrameId> {
        let frame = FrameId(self.free);
        let place = self.place(frame)?;
        if let Has::Free(next) = *place {
            *place = Has::Us;
            self.free = next;
            return Some(frame);
        }
        None
    }

    /// Frees a frame of ours. One that is not is left alone.
    pub(super) fn release(&mut self, frame: FrameId) {
        let next = self.free;
        if let Some(place) = self.place(frame)
            && *place == Has::Us
        {
            *place = Has::Free(next);
            self.free = frame.0;
        }
    }

    /// Gives a frame of ours to the HCA, which is about to be told of its first `len` bytes.
    pub(super) fn post(&mut self, frame: FrameId, len: usize) -> Option<Sge> {
        let (lkey, stride) = (self.mr.lkey, self.stride);
        let at = self
            .raw
            .bus
            .plus((stride as u64).wrapping_mul(frame.0.into()));
        let length = u32::try_from(len.min(stride)).ok()?;
        let place = self.place(frame)?;
        if *place != Has::Us {
            return None;
        }
        *place = Has::Hca;
        self.posted = self.posted.saturating_add(1);
        Some(Sge {
            addr: at.get(),
            length,
            lkey,
        })
    }

    /// A frame that the HCA had is ours again: it completed, or could not be posted. `false` if it had not.
    pub(super) fn take_back(&mut self, frame: FrameId) -> bool {
        match self.place(frame) {
            Some(place) if *place == Has::Hca => {
                *place = Has::Us;
                self.posted = self.posted.saturating_sub(1);
                true
            }
            _ => false,
        }
    }

    /// The QP was reset: all that was posted is free. Returns how many there were.
    pub(super) fn free_posted(&mut self) -> u16 {
        let lost = self.posted;
        for frame in (0..).map(FrameId).take(self.has.len()) {
            if self.take_back(frame) {
                self.release(frame);
            }
        }
        lost
    }

    /// The bytes of a frame, if it is ours.
    pub(super) fn bytes(&mut self, frame: FrameId) -> Option<&mut [u8]> {
        let stride = self.stride;
        if *self.place(frame)? != Has::Us {
            return None;
        }
        let at = stride.checked_mul(usize::from(frame.0))?;
        if at.checked_add(stride)? > self.raw.len {
            return None;
        }
        // SAFETY: `at + stride` is within the allocation, as just checked.
        let first: NonNull<u8> = unsafe { self.raw.memory.add(at) };
        // SAFETY: `stride` initialised bytes (the machine gave them zeroed) that belong to this value. The frame is not
        // posted, so the HCA was not told of it or said that it is done with it; `&mut self` keeps every other
        // reference away and the frame from being posted meanwhile.
        Some(unsafe { NonNull::slice_from_raw_parts(first, stride).as_mut() })
    }
}

/// The smallest page size among `supported` (bit n: 2^n bytes) of which few enough make `total` bytes.
fn page_shift(supported: u64, total: usize) -> Result<u8, VerbsError> {
    let fits = |shift: &u8| {
        let possible = supported & (1 << shift) != 0;
        possible && total.div_ceil(1 << shift) <= PAGES
    };
    (12..=31_u8).find(fits).ok_or(VerbsError::NoResources {
        entry: "page size of the HCA: lower send_frames or recv_frames",
        limit: PAGES as u32,
    })
}
