//! Directed routes: what becomes of an SMP at each node on its way. protocols 3.5.
//!
//! The rules of the subnet management interface (SMI) alone: they look at a [`DirectedRoute`] and say where the SMP
//! goes, and what is to be written into it. Who calls does the writing and the sending. Pure; any context.

use super::{MadStatus, Smp};
use crate::types::Lid;
use core::fmt;

/// What is to become of an SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is for the agent, or for the manager, of this node.
    Local,
    /// Out by this port, both LIDs permissive.
    Out {
        /// Which port.
        port: u8,
    },
    /// The directed part of its way is over: on to this LID, from the LID of this switch.
    LidRouted {
        /// Whither.
        dlid: Lid,
    },
}

/// Where an SMP goes, and what changes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmiStep {
    /// Whither.
    pub turn: Turn,
    /// The new HopPointer.
    pub hop_pointer: u8,
    /// The port that it came by, to be written into the return path at the old HopPointer.
    pub came_by: Option<u8>,
}

/// Why an SMP is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SmiError {
    /// More hops than a route can have.
    TooManyHops {
        /// HopCount.
        hop_count: u8,
    },
    /// The hop pointer is where this node has no business: in the middle of a route that it cannot forward, before its
    /// beginning, or past its end.
    HopPointer {
        /// HopPointer.
        hop_pointer: u8,
        /// HopCount.
        hop_count: u8,
    },
    /// The route leaves by a port that the node does not have, or that is not the one it was to be sent by.
    Port {
        /// The port that the route names.
        found: u8,
        /// The last port of the node; or the one in question.
        port: u8,
    },
    /// The route goes on by LID, which would be a switch's work.
    NotASwitch {
        /// DrDLID outbound, DrSLID returning.
        lid: Lid,
    },
}

impl fmt::Display for SmiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyHops { hop_count } => {
                write!(f, "a directed route of {hop_count} hops; 63 is the most")
            }
            Self::HopPointer {
                hop_pointer,
                hop_count,
            } => write!(f, "hop {hop_pointer} of {hop_count} is none of this node's"),
            Self::Port { found, port } => {
                write!(f, "the route names port {found}, and not port {port}")
            }
            Self::NotASwitch { lid } => {
                write!(f, "the route goes on to LID {lid}, and this is no switch")
            }
        }
    }
}

impl core::error::Error for SmiError {}

/// The fields of an SMP that decide.
#[derive(Clone, Copy, Debug)]
pub struct DirectedRoute<'s> {
    /// HopPointer.
    pub hop_pointer: u8,
    /// HopCount.
    pub hop_count: u8,
    /// The D bit.
    pub returning: bool,
    /// Where the directed part begins.
    pub dr_slid: Lid,
    /// Where it ends.
    pub dr_dlid: Lid,
    /// Output port of each hop.
    pub initial_path: &'s [u8; 64],
    /// Input port of each hop.
    pub return_path: &'s [u8; 64],
}

impl<'s> From<&'s Smp> for DirectedRoute<'s> {
    fn from(smp: &'s Smp) -> Self {
        Self {
            hop_pointer: smp.header.hop_pointer,
            hop_count: smp.header.hop_count,
            returning: smp.header.status.0 & MadStatus::DIRECTION != 0,
            dr_slid: smp.dr_slid,
            dr_dlid: smp.dr_dlid,
            initial_path: &smp.initial_path,
            return_path: &smp.return_path,
        }
    }
}

impl DirectedRoute<'_> {
    const fn wrong_pointer(&self) -> SmiError {
        SmiError::HopPointer {
            hop_pointer: self.hop_pointer,
            hop_count: self.hop_count,
        }
    }
}

/// The interface of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smi {
    /// The node can forward.
    pub is_switch: bool,
    /// Number of external ports.
    pub ports: u8,
}

impl Smi {
    /// An SMP that arrived by `in_port`; without one, it was made on this node.
    ///
    /// # Errors
    ///
    /// It is to be discarded, without an answer.
    pub fn step(self, route: &DirectedRoute<'_>, in_port: Option<u8>) -> Result<SmiStep, SmiError> {
        if usize::from(route.hop_count) > Smp::MAX_HOPS {
            let hop_count = route.hop_count;
            return Err(SmiError::TooManyHops { hop_count });
        }
        if route.returning {
            self.returning(route, in_port)
        } else {
            self.outbound(route, in_port)
        }
    }

    /// An SMP arrived at `in_port`. Changes hop pointer and return path as the rules say; one that is to be discarded
    /// stays as it was.
    ///
    /// # Errors
    ///
    /// It is to be discarded, without an answer.
    pub fn receive(self, smp: &mut Smp, in_port: u8) -> Result<Turn, SmiError> {
        self.apply(smp, Some(in_port))
    }

    /// An SMP was made on this node: a request of its own, or the answer to one that it received. A CA with several
    /// ports sends it by the port that the path names. One that is to be discarded stays as it was.
    ///
    /// # Errors
    ///
    /// It is not to be sent.
    pub fn originate(self, smp: &mut Smp) -> Result<Turn, SmiError> {
        self.apply(smp, None)
    }

    fn apply(self, smp: &mut Smp, in_port: Option<u8>) -> Result<Turn, SmiError> {
        let step = self.step(&DirectedRoute::from(&*smp), in_port)?;
        let place = usize::from(smp.header.hop_pointer);
        if let (Some(port), Some(place)) = (step.came_by, smp.return_path.get_mut(place)) {
            *place = port;
        }
        smp.header.hop_pointer = step.hop_pointer;
        Ok(step.turn)
    }

    /// Out by the port at `hop` of `path`, if the node has it.
    fn out(self, path: &[u8; 64], hop: u8) -> Result<Turn, SmiError> {
        let found = path.get(usize::from(hop)).copied().unwrap_or(0);
        if found == 0 || found > self.ports {
            let port = self.ports;
            return Err(SmiError::Port { found, port });
        }
        Ok(Turn::Out { port: found })
    }

    /// protocols 3.5.1; the numbers are those of its cases.
    fn outbound(self, route: &DirectedRoute<'_>, in_port: Option<u8>) -> Result<SmiStep, SmiError> {
        let (hops, at) = (route.hop_count, route.hop_pointer);
        let step = |turn, came_by| SmiStep {
            turn,
            hop_pointer: at.wrapping_add(1), // `at` is 64 at most
            came_by,
        };
        match at {
            // 1: the beginning of the directed part
            0 if hops > 0 => {
                let by_lid = self.is_switch && !route.dr_slid.is_permissive();
                if in_port.is_some() && !by_lid {
                    return Err(route.wrong_pointer());
                }
                Ok(step(self.out(route.initial_path, 1)?, None))
            }
            // 2: on the way
            _ if at < hops => {
                let in_port = in_port.filter(|_| self.is_switch);
                let in_port = in_port.ok_or(route.wrong_pointer())?;
                let turn = self.out(route.initial_path, at.wrapping_add(1))?;
                Ok(step(turn, Some(in_port)))
            }
            // 3: the end of the directed part
            _ if at == hops => {
                if hops > 0 && in_port.is_none() {
                    return Err(route.wrong_pointer());
                }
                let turn = self.end_of(route.dr_dlid)?;
                Ok(step(turn, in_port.filter(|_| hops > 0)))
            }
            // 4: the end of the last LID-routed part
            _ if at == hops.wrapping_add(1) => Ok(SmiStep {
                turn: Turn::Local,
                hop_pointer: at,
                came_by: None,
            }),
            // 5
            _ => Err(route.wrong_pointer()),
        }
    }

    /// protocols 3.5.2; the numbers are those of its cases.
    fn returning(
        self,
        route: &DirectedRoute<'_>,
        in_port: Option<u8>,
    ) -> Result<SmiStep, SmiError> {
        let (hops, at) = (route.hop_count, route.hop_pointer);
        let step = |turn, hop_pointer| SmiStep {
            turn,
            hop_pointer,
            came_by: None,
        };
        match at {
            // 4: the end of the last LID-routed part
            0 => Ok(step(Turn::Local, 0)),
            // 1: the beginning of the directed part
            _ if hops > 0 && at == hops.wrapping_add(1) => {
                let by_lid = self.is_switch && !route.dr_dlid.is_permissive();
                if in_port.is_some() && !by_lid {
                    return Err(route.wrong_pointer());
                }
                Ok(step(self.out(route.return_path, hops)?, hops))
            }
            // 3: the end of the directed part
            1 => Ok(step(self.end_of(route.dr_slid)?, 0)),
            // 2: on the way
            _ if at <= hops && self.is_switch => {
                let before = at.wrapping_sub(1);
                Ok(step(self.out(route.return_path, before)?, before))
            }
            // 5, and a CA on the way
            _ => Err(route.wrong_pointer()),
        }
    }

    /// The directed part ends here: on to `lid`, if there is more to go.
    const fn end_of(self, lid: Lid) -> Result<Turn, SmiError> {
        if lid.is_permissive() {
            Ok(Turn::Local)
        } else if self.is_switch {
            Ok(Turn::LidRouted { dlid: lid })
        } else {
            Err(SmiError::NotASwitch { lid })
        }
    }
}

#[cfg(test)]
mod tests;
