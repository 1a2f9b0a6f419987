//! The half that blocks: QPs of connections are made and ended.

use core_ib::verbs::{Access, Device, PdHandle, QpHandle, QpInfo, QpInit, VerbsError};
use ib_cm::init_attr;

/// Something that may block. Plain data; each is to be carried out once, and the result given back.
#[derive(Clone, Copy, Debug)]
pub enum ConnWish {
    /// Make a QP and bring it to INIT.
    Make {
        /// For this place.
        slot: u16,
        /// Its domain.
        pd: PdHandle,
        /// What it is to be.
        init: QpInit,
        /// Its port.
        port: u8,
        /// Its partition.
        pkey_index: u16,
    },
    /// Destroy a QP.
    End {
        /// Of this place.
        slot: u16,
        /// The QP.
        qp: QpHandle,
    },
}

/// What became of a wish.
#[derive(Clone, Copy, Debug)]
pub struct ConnDone {
    pub(super) slot: u16,
    pub(super) made: Made,
}

/// A QP that was made, or that is gone.
#[derive(Clone, Copy, Debug)]
pub enum Made {
    /// Made, or why not.
    Qp(Result<QpInfo, VerbsError>),
    /// Gone, or why not.
    Gone(Result<(), VerbsError>),
}

impl ConnWish {
    /// Carries it out. Control context; blocks.
    pub fn carry_out<D: Device + ?Sized>(&self, device: &D) -> ConnDone {
        match *self {
            Self::Make {
                slot,
                pd,
                init,
                port,
                pkey_index,
            } => {
                let made = device.create_qp(pd, &init).and_then(|made| {
                    let (attr, mask) = init_attr(port, pkey_index, Access::empty());
                    match device.modify_qp(made.handle, &attr, mask) {
                        Ok(()) => Ok(made),
                        Err(error) => {
                            // The first error is the one to be told.
                            let _ = device.destroy_qp(made.handle);
                            Err(error)
                        }
                    }
                });
                let made = Made::Qp(made);
                ConnDone { slot, made }
            }
            Self::End { slot, qp } => ConnDone {
                slot,
                made: Made::Gone(device.destroy_qp(qp)),
            },
        }
    }
}
