//! Jobs: what a host needs done where blocking is allowed.
//!
//! A job is plain data and borrows the device alone, so that it runs while the stack lies under its owner's lock. Each
//! is to be run once, in any order, and its result given back.

use crate::{GIDS, PKEYS};
use core_ib::verbs::{Device, PortEvent, PortModify, PortTables, VerbsError};
use core_ib::wire::mad::Capability;
use ib_mad::{Granted, Wish as MadWish};
use ipoib::link::{ConnDone, ConnWish, Control, Done, Wish as LinkWish};

/// Something to be done.
pub struct Job<'d, V> {
    pub(crate) port: u8,
    pub(crate) what: What<'d, V>,
}

pub(crate) enum What<'d, V> {
    /// Of the special QPs.
    Mad(MadWish),
    /// Of a connection.
    Cm(ib_cm::Wish),
    /// Of an interface's connections.
    Conn(u8, ConnWish),
    /// Of an interface.
    Link(u8, Control<'d, V>, LinkWish),
    /// Read the port's tables, because of this event or because they were never read.
    Refresh(Option<PortEvent>),
    /// Look whether the link is up: an HCA raises no event before the port is Active.
    Probe,
    /// Set or clear IsSM.
    IsSm(bool),
}

/// A job's result.
pub struct JobDone {
    pub(crate) port: u8,
    pub(crate) what: Outcome,
}

pub(crate) enum Outcome {
    Mad(Granted),
    Cm(ib_cm::Granted),
    Conn(u8, ConnDone),
    Link(u8, Done),
    Refresh(
        Option<PortEvent>,
        Result<PortTables<GIDS, PKEYS>, VerbsError>,
    ),
    Probe(Result<u8, VerbsError>),
    /// What was asked for, and whether it came true.
    IsSm(bool, Result<(), VerbsError>),
}

impl<V: Device> Job<'_, V> {
    /// Does it. Control context; blocks.
    pub fn run(&self, device: &V) -> JobDone {
        let port = self.port;
        let what = match &self.what {
            What::Mad(wish) => Outcome::Mad(wish.grant(device)),
            What::Conn(index, wish) => Outcome::Conn(*index, wish.carry_out(device)),
            What::Cm(wish) => Outcome::Cm(wish.grant(device)),
            What::Link(index, control, wish) => Outcome::Link(*index, control.carry_out(*wish)),
            What::Refresh(event) => Outcome::Refresh(*event, PortTables::read(device, port)),
            What::Probe => Outcome::Probe(device.query_port(port).map(|port| port.state)),
            What::IsSm(is_sm) => {
                let bit = Capability::SM.bits();
                let change = match is_sm {
                    true => PortModify {
                        set_caps: bit,
                        ..PortModify::default()
                    },
                    false => PortModify {
                        clear_caps: bit,
                        ..PortModify::default()
                    },
                };
                Outcome::IsSm(*is_sm, device.modify_port(port, &change))
            }
        };
        JobDone { port, what }
    }
}
