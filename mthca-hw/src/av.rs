//! Address handles and the address vectors behind them. verbs 9.1, infinihost 4.10.
//!
//! In T-mode the HCA reads a vector when it executes a send, through the region that each PD has over all of them. They
//! lie in attached memory where the host can reach it, else in host memory. In M-mode the HCA has no part in them: they
//! are copied into each send. Making and ending a handle never blocks.

use crate::inner::Inner;
use crate::let_go::Released;
use crate::plan::{AV_ENTRY, Plan};
use crate::port::Port;
use core::sync::atomic::{AtomicU64, Ordering};
use core_ib::platform::{Caching, DmaBuf, Lock, Platform, PlatformError, Registers, Table};
use core_ib::verbs::{AhAttr, AhHandle, Object, PdHandle, VerbsError, kind};
use core_ib::{Mtu, Rate};
use hca_abi::infinihost::av::AddressVector;
use hca_abi::infinihost::pci::BAR_DDR;
use zerocopy::IntoBytes;

/// Where the vectors are.
enum Place<'p, P: Platform> {
    /// In attached memory, seen through a window.
    Attached(P::Registers),
    /// In host memory.
    Host(DmaBuf<'p, P>),
    /// In the driver's own memory, eight bytes at a time, as they lie.
    Own(Table<'p, Vector, P>),
}

/// A vector, eight bytes at a time, as they lie.
pub(crate) type Vector = [AtomicU64; AV_ENTRY as usize / 8];

/// All address vectors.
pub(crate) struct AvPool<'p, P: Platform> {
    place: Place<'p, P>,
    /// Address of the first as the HCA knows it.
    base: u64,
    count: u32,
    /// Of each vector the life number of its handle (upper half) and whose it is: the place of its PD, counted from 1.
    owners: Table<'p, AtomicU64, P>,
    /// What each was made of.
    attrs: Table<'p, Lock<AhAttr, P::RawLock>, P>,
}

const fn owner(ah: AhHandle, pd: u32) -> u64 {
    (ah.generation() as u64) << 32 | pd.wrapping_add(1) as u64
}

impl<'p, P: Platform> AvPool<'p, P> {
    /// In attached memory that begins at `ddr`. Set-up only.
    pub fn attached(machine: &'p P, plan: &Plan, ddr: u64) -> Result<Self, PlatformError> {
        let count = plan.avs;
        let len = u64::from(count).saturating_mul(AV_ENTRY) as usize;
        let at = plan.tables.av.wrapping_sub(ddr);
        let owners = Table::new(machine, count as usize, |_| AtomicU64::new(0))?;
        let attrs = attrs(machine, count)?;
        let window = machine.map(BAR_DDR, at, len, Caching::Uncached)?;
        let place = Place::Attached(window);
        Ok(Self {
            place,
            base: plan.tables.av,
            count,
            owners,
            attrs,
        })
    }

    /// In host memory. Set-up only.
    pub fn host(machine: &'p P, plan: &Plan) -> Result<Self, PlatformError> {
        let count = plan.avs;
        let len = u64::from(count).saturating_mul(AV_ENTRY) as usize;
        let owners = Table::new(machine, count as usize, |_| AtomicU64::new(0))?;
        let attrs = attrs(machine, count)?;
        let memory = DmaBuf::new(machine, len, 4096)?;
        let base = memory.addr().get();
        let place = Place::Host(memory);
        Ok(Self {
            place,
            base,
            count,
            owners,
            attrs,
        })
    }

    /// In the driver's own memory. Set-up only.
    pub fn private(machine: &'p P, plan: &Plan) -> Result<Self, PlatformError> {
        let count = plan.avs;
        let owners = Table::new(machine, count as usize, |_| AtomicU64::new(0))?;
        let attrs = attrs(machine, count)?;
        let place = Place::Own(Table::new(machine, count as usize, |_| Vector::default())?);
        Ok(Self {
            place,
            base: 0,
            count,
            owners,
            attrs,
        })
    }

    /// Vector `index`, where the HCA does not read it itself. Any context.
    #[inline]
    pub fn own_vector(&self, index: u32) -> Option<&Vector> {
        match &self.place {
            Place::Own(vectors) => vectors.get(index as usize),
            Place::Attached(_) | Place::Host(_) => None,
        }
    }

    /// Address of vector `index` as the HCA knows it.
    #[inline]
    pub fn address(&self, index: u32) -> u64 {
        self.base
            .wrapping_add(u64::from(index).wrapping_mul(AV_ENTRY))
    }

    /// Is `ah` alive, and in the PD at place `pd`? One load, for the data path.
    #[inline]
    pub fn is_in(&self, ah: AhHandle, pd: u32) -> bool {
        let known = self.owners.get(ah.index() as usize);
        known.is_some_and(|known| known.load(Ordering::Acquire) == owner(ah, pd))
    }

    fn own(&self, ah: AhHandle, pd: u32) {
        if let Some(known) = self.owners.get(ah.index() as usize) {
            known.store(owner(ah, pd), Ordering::Release);
        }
    }

    /// Unless the place has a new owner already.
    fn disown(&self, ah: AhHandle, pd: u32) {
        if let Some(known) = self.owners.get(ah.index() as usize) {
            let own = owner(ah, pd);
            let _ = known.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Address and bytes of all, where the HCA reads them.
    pub fn extent(&self) -> Option<(u64, u64)> {
        match self.place {
            Place::Own(_) => None,
            _ => Some((self.base, u64::from(self.count).saturating_mul(AV_ENTRY))),
        }
    }

    /// What vector `index` was made of. Any context but hard interrupt.
    pub fn attr(&self, index: u32) -> Option<AhAttr> {
        let attr = self.attrs.get(index as usize)?;
        Some(attr.with(|attr| *attr))
    }

    /// Makes vector `index` of `attr`. Any context but hard interrupt.
    fn make(&self, index: u32, vector: &AddressVector, attr: &AhAttr) {
        if let Some(known) = self.attrs.get(index as usize) {
            known.with(|known| {
                self.write(index, vector);
                *known = *attr;
            });
        }
    }

    fn write(&self, index: u32, vector: &AddressVector) {
        let at = index as usize * AV_ENTRY as usize;
        match &self.place {
            Place::Attached(window) => {
                let (words, _) = vector.as_bytes().as_chunks::<4>();
                for (word, offset) in words.iter().zip((at..).step_by(4)) {
                    window.write_be32(offset, u32::from_be_bytes(*word));
                }
            }
            Place::Host(memory) => {
                // A place that does not exist has no handle.
                let _ = memory.write(at, vector);
            }
            Place::Own(vectors) => {
                let (pairs, _) = vector.as_bytes().as_chunks::<8>();
                let own = vectors.get(index as usize).into_iter().flatten();
                for (pair, own) in pairs.iter().zip(own) {
                    own.store(u64::from_ne_bytes(*pair), Ordering::Relaxed);
                }
            }
        }
    }

    /// Gives host memory back.
    pub fn free(self, released: &Released) {
        if let Place::Host(memory) = self.place {
            released.free(memory);
        }
    }
}

/// Places for the attributes of `count` vectors.
fn attrs<P: Platform>(
    machine: &P,
    count: u32,
) -> Result<Table<'_, Lock<AhAttr, P::RawLock>, P>, PlatformError> {
    Table::new(machine, count as usize, |_| {
        machine.lock("AH", false, AhAttr::default())
    })
}

/// One address handle. What it leads to is with its vector.
#[derive(Debug)]
pub(crate) struct Ah {
    /// Number of its PD.
    pd_number: u32,
    /// Place of its PD.
    pub pd: u32,
}

impl Object for Ah {
    type Kind = kind::Ah;
    const NAME: &'static str = "AH";
    const PROFILE: &'static str = "ahs";
}

/// What the HCA's codes of static rates mean. Code 0 is no limit. infinihost 4.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rates {
    /// T-mode: 1 is 1X SDR, 2 is 4X SDR, 3 is 1X DDR.
    Fixed,
    /// M-mode: 1 is a quarter, 2 an eighth, 3 a half of the port's rate, which is this many times 2.5 Gbit/s.
    Parts(u32),
    /// M-mode, of old firmware: whatever is not 0 is 1X SDR.
    Slow(u32),
}

impl Rates {
    /// The code of a rate. `usable` has a bit for each that the HCA has. `None` for a rate that nobody knows.
    pub fn code(self, rate: Rate, usable: u16) -> Option<u8> {
        if rate == Rate::PORT {
            return Some(0);
        }
        let multiple = rate.multiple()?;
        let code = match self {
            Self::Fixed => match multiple {
                1 => 1,
                2 | 3 => 3,
                4..8 => 2,
                _ => 0, // no slower than the port
            },
            Self::Parts(port) | Self::Slow(port) => {
                match port.saturating_sub(1).checked_div(multiple).unwrap_or(0) {
                    0 => 0,
                    1 => 3,
                    2 | 3 => 1,
                    _ => 2,
                }
            }
        };
        Some(if usable & 1 << code == 0 { 1 } else { code })
    }

    /// The reverse: the rate of a code.
    pub const fn rate(self, code: u8) -> Rate {
        let parts = match self {
            Self::Fixed => {
                return match code {
                    1 => Rate::GBPS_2_5,
                    2 => Rate::GBPS_10,
                    3 => Rate::GBPS_5,
                    _ => Rate::PORT,
                };
            }
            Self::Slow(_) if code != 0 => return Rate::GBPS_2_5,
            Self::Parts(port) | Self::Slow(port) => match code {
                1 => port / 4,
                2 => port / 8,
                3 => port / 2,
                _ => return Rate::PORT,
            },
        };
        match parts {
            0 | 1 => Rate::GBPS_2_5,
            2 | 3 => Rate::GBPS_5,
            4..8 => Rate::GBPS_10,
            8..12 => Rate::GBPS_20,
            _ => Rate::GBPS_30,
        }
    }
}

/// Rates that M-mode firmware names when it is too old for parts of the port's rate. infinihost 4.10.
const OLD_RATES: u16 = 0x3;

impl<P: Platform> Inner<'_, P> {
    /// What codes of static rates mean on a port. Any context.
    pub fn rates(&self, port: u8) -> Rates {
        if !self.chip.is_mem_free() {
            return Rates::Fixed;
        }
        let multiple = self.check_port(port).map_or(0, Port::multiple);
        if self.limits.static_rates == OLD_RATES {
            Rates::Slow(multiple)
        } else {
            Rates::Parts(multiple)
        }
    }

    /// The code of the rate of `attr`; `None` for a rate that nobody knows. Any context.
    pub fn static_rate(&self, attr: &AhAttr) -> Option<u8> {
        let rates = self.rates(attr.port);
        rates.code(attr.static_rate, self.limits.static_rates)
    }

    /// Can `attr` lead anywhere? Never blocks: the tables are those that the driver keeps. verbs 9.1.
    pub fn check_address(&self, attr: &AhAttr) -> Result<(), VerbsError> {
        let invalid = |field, found: u64, allowed: u64| {
            Err(VerbsError::InvalidAttr {
                field,
                found,
                allowed,
            })
        };
        let port = self.check_port(attr.port)?;
        if self.static_rate(attr).is_none() {
            return invalid("static rate", u64::from(attr.static_rate.0), 18);
        }
        if attr.dlid.0 == 0 || attr.dlid.is_multicast() && attr.grh.is_none() {
            return invalid("destination LID", u64::from(attr.dlid.0), 0xbfff);
        }
        let Some(grh) = attr.grh else { return Ok(()) };
        let index = u64::from(grh.sgid_index);
        match port.gid(u16::from(grh.sgid_index)) {
            Some(gid) if !gid.is_none() => Ok(()),
            _ => invalid("source GID index", index, u64::from(self.limits.gids) - 1),
        }
    }

    fn vector(&self, pd: u32, attr: &AhAttr) -> AddressVector {
        let rate = self.static_rate(attr);
        let mut vector = AddressVector::ZERO;
        vector
            .set_port(attr.port)
            .set_pd(pd)
            .set_path_bits(attr.src_path_bits)
            .set_dlid(attr.dlid.0)
            .set_message_size(Mtu::Mtu2048.code() - 1)
            .set_static_rate(rate.unwrap_or(0))
            .set_sl(attr.sl.get());
        match attr.grh {
            Some(grh) => {
                let first = (attr.port.saturating_sub(1)).wrapping_mul(self.limits.gids as u8);
                vector
                    .set_grh(true)
                    .set_gid_index(first.wrapping_add(grh.sgid_index))
                    .set_hop_limit(grh.hop_limit)
                    .set_traffic_class(grh.traffic_class)
                    .set_flow_label(grh.flow_label)
                    .set_dgid(grh.dgid.0);
            }
            None => {
                vector.set_dgid_last(AddressVector::NO_GRH);
            }
        }
        vector
    }

    pub(crate) fn create_ah(&self, pd: PdHandle, attr: &AhAttr) -> Result<AhHandle, VerbsError> {
        self.cmd.health().check()?;
        self.check_address(attr)?;
        let home = self.enter_pd(pd)?;
        let vacant = match self.ahs.reserve() {
            Ok(vacant) => vacant,
            Err(full) => {
                self.leave_pd(home.index);
                return Err(full);
            }
        };
        let index = vacant.index();
        self.av.make(index, &self.vector(home.number, attr), attr);
        let (pd_number, pd) = (home.number, home.index);
        let ah = vacant.fill(Ah { pd_number, pd });
        self.av.own(ah, pd);
        Ok(ah)
    }

    pub(crate) fn query_ah(&self, ah: AhHandle) -> Result<AhAttr, VerbsError> {
        let _held = self.ahs.get(ah)?;
        let stale = VerbsError::InvalidHandle { object: Ah::NAME };
        self.av.attr(ah.index()).ok_or(stale)
    }

    /// A datagram that is outstanding goes to the old place, to the new one or, if the HCA reads its vector in this
    /// very moment, nowhere. Never blocks.
    pub(crate) fn modify_ah(&self, ah: AhHandle, attr: &AhAttr) -> Result<(), VerbsError> {
        self.cmd.health().check()?;
        self.check_address(attr)?;
        let held = self.ahs.get(ah)?;
        let vector = self.vector(held.pd_number, attr);
        self.av.make(ah.index(), &vector, attr);
        Ok(())
    }

    pub(crate) fn destroy_ah(&self, ah: AhHandle) -> Result<(), VerbsError> {
        let pd = self.ahs.remove(ah)?.pd;
        self.av.disown(ah, pd);
        self.leave_pd(pd);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_the_hca_does_not_have_becomes_the_slowest() {
        let code = |rate, usable| Rates::Fixed.code(rate, usable);
        assert_eq!(code(Rate::GBPS_10, 0xf), Some(2));
        assert_eq!(code(Rate::GBPS_10, 0x3), Some(1));
        assert_eq!(code(Rate::GBPS_5, 0xf), Some(3));
        assert_eq!(code(Rate::GBPS_120, 0xf), Some(0));
        assert_eq!(code(Rate::PORT, 0x3), Some(0));
        assert_eq!(code(Rate(77), 0xf), None);
    }

    #[test]
    fn rates_survive_the_way_to_the_hca_and_back() {
        for rate in [Rate::PORT, Rate::GBPS_2_5, Rate::GBPS_5, Rate::GBPS_10] {
            let code = Rates::Fixed.code(rate, 0xf);
            assert_eq!(code.map(|code| Rates::Fixed.rate(code)), Some(rate));
        }
    }

    #[test]
    fn in_m_mode_a_rate_is_a_part_of_the_ports() {
        let code = |port, rate| Rates::Parts(port).code(rate, 0xf).unwrap();
        // A port of 4X DDR.
        let rates = [
            Rate::GBPS_30,
            Rate::GBPS_20,
            Rate::GBPS_10,
            Rate::GBPS_5,
            Rate::GBPS_2_5,
        ];
        assert_eq!(rates.map(|rate| code(8, rate)), [0, 0, 3, 1, 2]);
        for rate in [Rate::GBPS_10, Rate::GBPS_5, Rate::GBPS_2_5] {
            assert_eq!(Rates::Parts(8).rate(code(8, rate)), rate);
        }
        assert_eq!(code(4, Rate::GBPS_10), 0);
        assert_eq!(code(0, Rate::GBPS_2_5), 0, "a port that is down");
        assert_eq!(Rates::Slow(4).code(Rate::GBPS_5, 0x3), Some(1));
        assert_eq!(Rates::Slow(4).rate(1), Rate::GBPS_2_5);
    }
}
