//! Doorbell records: counters in host memory that an HCA of the M-mode looks at when it needs them. infinihost 2.10.
//!
//! They lie behind the context of a UAR page. Those of the driver's own queues are there from the start, one place for
//! each queue that the profile allows; group 1 (send queues, arming) from the front of the context, group 2 (receive
//! queues, SRQs, consumer indices) from its end. So a place is computed and never looked for.

use crate::cmd::CmdError;
use crate::icm::{LendError, MapIcm, PAGE, map};
use crate::let_go::Released;
use crate::plan::Plan;
use crate::profile::Profile;
use core_ib::platform::{DmaBuf, DmaLong, DmaLongs, Platform, PlatformError};
use hca_abi::infinihost::doorbell::{DoorbellRecord, RecordType};

/// Bytes of a record.
const RECORD: u32 = size_of::<DoorbellRecord>() as u32;

/// One record of the driver's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bell {
    /// As the context of its queue names it.
    pub index: u32,
    /// Which it is in the memory of all.
    at: u32,
}

/// The driver's own records.
pub(crate) struct Bells<'p, P: Platform> {
    /// The pages of group 1, then those of group 2.
    memory: DmaLongs<'p, P>,
    /// Where they are to be found.
    places: Places,
}

/// How the records are shared out.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Bytes of group 1, in whole pages.
    front: u32,
    /// Bytes of both groups.
    all: u32,
    /// Records of a UAR context.
    records: u32,
    /// Of each group the first so many are CQs', then come QPs, then SRQs.
    cqs: u32,
    qps: u32,
}

impl Places {
    fn new(plan: &Plan, profile: &Profile) -> Self {
        let [front, back] = plan.record_pages(profile).map(|pages| pages * PAGE as u32);
        Self {
            front,
            all: front + back,
            records: (PAGE as u32 / RECORD) << plan.log_uarc_pages,
            cqs: profile.cqs,
            qps: profile.qps,
        }
    }

    const fn of_group_1(&self, number: u32) -> Bell {
        Bell {
            index: number,
            at: number,
        }
    }

    const fn of_group_2(&self, number: u32) -> Bell {
        let from_end = number.wrapping_add(1);
        Bell {
            index: self.records.wrapping_sub(from_end),
            at: (self.all / RECORD).wrapping_sub(from_end),
        }
    }
}

impl<'p, P: Platform> Bells<'p, P> {
    /// Memory for them. Tells the HCA nothing. Set-up only.
    pub fn new(machine: &'p P, plan: &Plan, profile: &Profile) -> Result<Self, PlatformError> {
        let places = Places::new(plan, profile);
        let len = places.all as usize;
        let memory = DmaBuf::new(machine, len, PAGE as usize)?;
        // It is aligned as was asked for.
        let memory = DmaLongs::over(memory).map_err(|_| PlatformError::NoDmaMemory { len })?;
        Ok(Self { memory, places })
    }

    /// Tells the HCA where they are. Set-up only.
    pub fn map(
        &self,
        plan: &Plan,
        run: &dyn Fn(&MapIcm) -> Result<(), CmdError>,
    ) -> Result<(), LendError> {
        let bus = self.memory.addr().get();
        for (at, from, len) in self.pieces(plan) {
            map(at, bus.wrapping_add(from), len, run)?;
        }
        Ok(())
    }

    /// Of each group: its ICM address, its offset in our memory, its bytes.
    pub fn pieces(&self, plan: &Plan) -> [(u64, u64, u64); 2] {
        let (front, all) = (u64::from(self.places.front), u64::from(self.places.all));
        let start = plan.uarc_of(plan.uar);
        let end = plan.uarc_of(plan.uar.wrapping_add(1));
        [
            (start, 0, front),
            (end.wrapping_sub(all - front), front, all - front),
        ]
    }

    /// Gives the memory back.
    pub fn free(self, released: &Released) {
        released.free(self.memory.into_memory());
    }

    /// Arming of the CQ in place `cq`.
    pub fn arm(&self, cq: u32) -> Bell {
        self.places.of_group_1(cq)
    }

    /// Consumer index of the CQ in place `cq`.
    pub fn consumer(&self, cq: u32) -> Bell {
        self.places.of_group_2(cq)
    }

    /// Send queue of the QP in place `qp`.
    pub fn send(&self, qp: u32) -> Bell {
        self.places.of_group_1(self.places.cqs.wrapping_add(qp))
    }

    /// Its receive queue.
    pub fn receive(&self, qp: u32) -> Bell {
        self.places.of_group_2(self.places.cqs.wrapping_add(qp))
    }

    /// The SRQ in place `srq`.
    pub fn srq(&self, srq: u32) -> Bell {
        let before = self.places.cqs.wrapping_add(self.places.qps);
        self.places.of_group_2(before.wrapping_add(srq))
    }

    /// A record begins: counter 0, of the object with this number. Control context.
    pub fn begin(&self, bell: Bell, record_type: RecordType, number: u32) {
        let mut record = DoorbellRecord::ZERO;
        record.set_number(number).set_record_type(record_type);
        let bytes: [u8; RECORD as usize] = zerocopy::transmute!(record);
        self.set(bell, u64::from_be_bytes(bytes));
    }

    /// It ends. Control context.
    pub fn end(&self, bell: Bell) {
        self.set(bell, 0);
    }

    /// Stores all of it. There is memory for as many as the profile allows, and no place beyond. Any context.
    #[inline]
    pub fn set(&self, bell: Bell, record: u64) {
        self.memory.set(bell.at as usize, record);
    }

    /// What its counter says.
    #[cfg(test)]
    pub fn counter(&self, bell: Bell) -> u32 {
        let mut counter = [0; 4];
        let at = bell.at as usize * RECORD as usize;
        self.memory.copy_out(at, &mut counter).unwrap();
        u32::from_be_bytes(counter)
    }

    /// The record itself, for who stores to it often.
    #[inline]
    pub fn word(&self, bell: Bell) -> Option<DmaLong<'_>> {
        self.memory.word(bell.at as usize)
    }

    /// Stores its counter. Any context; the caller has ordered it behind what it is about.
    #[inline]
    pub fn count(&self, bell: Bell, counter: u32) {
        self.memory.set_upper(bell.at as usize, counter);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::chip::{Chip, Mode};
    use crate::fake::Machine;
    use crate::limits::Limits;
    use std::collections::BTreeSet;

    #[test]
    fn every_queue_of_the_profile_has_a_record_of_its_own_within_the_pages_of_its_group() {
        let chip = Chip {
            mode: Mode::M,
            ..Chip::default()
        };
        for profile in [Profile::SMALL, Profile::SERVER] {
            let machine = Machine::idle();
            let plan = Plan::new(&chip, &profile, &Limits::MEM_FREE).unwrap();
            let bells = Bells::new(&machine, &plan, &profile).unwrap();
            let front = (0..profile.cqs)
                .map(|cq| bells.arm(cq))
                .chain((0..profile.qps).map(|qp| bells.send(qp)));
            let back = (0..profile.cqs)
                .map(|cq| bells.consumer(cq))
                .chain((0..profile.qps).map(|qp| bells.receive(qp)))
                .chain((0..profile.srqs).map(|srq| bells.srq(srq)));
            let [group_1, group_2] = bells.pieces(&plan);
            let mut seen = BTreeSet::new();
            for (bell, (at, from, len)) in front
                .map(|bell| (bell, group_1))
                .chain(back.map(|bell| (bell, group_2)))
            {
                let address = plan.uarc_of(plan.uar) + u64::from(bell.index) * 8;
                assert!(address >= at && address + 8 <= at + len, "{bell:?}");
                assert_eq!(address - at, u64::from(bell.at) * 8 - from);
                assert!(seen.insert(bell.at));
                assert!(bells.word(bell).is_some());
            }
            let beyond = Bell {
                index: 0,
                at: bells.memory.len() as u32 / RECORD,
            };
            assert!(bells.word(beyond).is_none());
            bells.free(&Released::never_told());
        }
    }
}
