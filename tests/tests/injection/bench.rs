//! What fails, what is counted, and an HCA with what the objects of a test need.

use core::time::Duration;
use core_ib::platform::{DmaBuf, LetGo, NoWake};
use core_ib::verbs::{CqHandle, CqInit, Device, Owner, PdHandle, VerbsError};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use mthca_hw::{Hca, Interrupts, Left, Profile};
use platform_sim::hca::infinihost::{CommandFault, Holdings, InfiniHost};
use platform_sim::machine::{Fallible, SimPlatform};

/// Something of everything, and a command that does not end is given up soon.
pub const PROFILE: Profile = Profile {
    mws: 4,
    fmrs: 4,
    users: 2,
    command_limit: Duration::from_secs(5),
    ..Profile::SMALL
};

/// What fails once.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The machine refuses.
    Machine(Fallible),
    /// The firmware does.
    Command(CommandFault),
}

/// All of them.
pub const FAULTS: &[Fault] = &[
    Fault::Machine(Fallible::DmaAlloc),
    Fault::Machine(Fallible::TableAlloc),
    Fault::Machine(Fallible::Completion),
    Fault::Machine(Fallible::Map),
    Fault::Machine(Fallible::AllocVectors),
    Fault::Machine(Fallible::BindInterrupt),
    Fault::Command(CommandFault::Refused(CmdStatus::INTERNAL_ERR)),
    Fault::Command(CommandFault::Refused(CmdStatus::BAD_RESOURCE)),
    Fault::Command(CommandFault::Silent),
    Fault::Command(CommandFault::Unannounced),
];

fn model<R>(machine: &SimPlatform, f: impl FnOnce(&mut InfiniHost) -> R) -> R {
    let result = machine.with_model(|hca: &mut InfiniHost, _| f(hca));
    result.expect("the HCA is there")
}

impl Fault {
    /// Does an HCA whose command goes wrong like that count as dead?
    pub const fn kills(&self) -> bool {
        matches!(
            self,
            Self::Command(CommandFault::Silent | CommandFault::Unannounced)
        )
    }

    /// How often it could have come so far.
    pub fn count(&self, machine: &SimPlatform) -> u64 {
        match *self {
            Self::Machine(what) => machine.calls(what),
            Self::Command(_) => model(machine, |hca| hca.commands()),
        }
    }

    /// It comes at the `n`-th chance from now on.
    pub fn arm(&self, machine: &SimPlatform, n: u64) {
        match *self {
            Self::Machine(what) => machine.fail(what, n),
            Self::Command(fault) => model(machine, |hca| hca.fail_command(n, fault)),
        }
    }

    /// It comes no more; if it was a command, which one it hit.
    pub fn disarm(&self, machine: &SimPlatform) -> Option<Opcode> {
        match *self {
            Self::Machine(what) => {
                machine.fail(what, 0);
                None
            }
            Self::Command(fault) => model(machine, |hca| {
                let hit = hca.failed_command();
                hca.fail_command(0, fault);
                hit
            }),
        }
    }

    /// Is `error` what a caller is to be told of it?
    pub fn is_told_by(&self, error: VerbsError, what: &str) {
        let right = match (*self, error) {
            (Self::Machine(_), VerbsError::Platform(_)) => true,
            (
                Self::Command(CommandFault::Refused(refusal)),
                VerbsError::CommandFailed { status, .. },
            ) => status == refusal.0,
            _ => false,
        };
        assert!(right, "{what}: {error:?}");
    }
}

/// What is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes of DMA memory and mappings.
    dma: u64,
    /// Bytes of tables.
    tables: u64,
    /// Bound vectors.
    interrupts: usize,
    /// What the HCA holds.
    pub holdings: Holdings,
    /// What is left in the driver's pools, if the HCA is open.
    left: Option<Left>,
}

impl Snapshot {
    /// At this moment.
    pub fn of(machine: &SimPlatform) -> Self {
        let (dma, tables) = machine.memory_in_use();
        Self {
            dma,
            tables,
            interrupts: machine.interrupts_bound(),
            holdings: model(machine, |hca| hca.holdings()),
            left: None,
        }
    }

    /// Without what the HCA holds.
    pub fn of_the_machine(&self) -> (u64, u64, usize) {
        (self.dma, self.tables, self.interrupts)
    }
}

/// Opens the HCA.
pub fn open(machine: &SimPlatform, interrupts: Interrupts) -> Result<Hca<'_, SimPlatform>, String> {
    let profile = Profile {
        interrupts,
        ..PROFILE
    };
    Hca::open(machine, &NoWake, &profile).map_err(|error| error.to_string())
}

/// An open HCA and what objects are made of.
pub struct Bench<'m> {
    hca: Hca<'m, SimPlatform>,
    machine: &'m SimPlatform,
    /// A domain.
    pub pd: PdHandle,
    /// A CQ.
    pub cq: CqHandle,
    /// Two pages.
    pub memory: DmaBuf<'m, SimPlatform>,
}

impl<'m> Bench<'m> {
    /// Opens the HCA.
    pub fn new(machine: &'m SimPlatform) -> Self {
        let hca = open(machine, Interrupts::Messages).unwrap();
        let pd = hca.alloc_pd().unwrap();
        let cq = CqInit {
            cqe: 15,
            vector: 0,
            owner: Owner::Kernel,
        };
        let cq = hca.create_cq(&cq).unwrap().handle;
        let memory = DmaBuf::new(machine, 8192, 4096).unwrap();
        Self {
            hca,
            machine,
            pd,
            cq,
            memory,
        }
    }

    /// The HCA.
    pub fn hca(&self) -> &Hca<'m, SimPlatform> {
        &self.hca
    }

    /// What is out, of it and of its HCA.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            left: Some(self.hca.left()),
            ..Snapshot::of(self.machine)
        }
    }

    fn give_back(memory: DmaBuf<'_, SimPlatform>) {
        // SAFETY: the regions over it ended with the HCA, or before.
        memory.free(unsafe { LetGo::claim() });
    }

    /// Ends everything in order; nothing else is left.
    pub fn end(self) {
        self.hca.destroy_cq(self.cq).unwrap();
        self.hca.dealloc_pd(self.pd).unwrap();
        self.hca.close().map_err(|(_, error)| error).unwrap();
        Self::give_back(self.memory);
    }

    /// Ends the HCA with all that is left on it.
    pub fn end_with_all(self) {
        drop(self.hca);
        Self::give_back(self.memory);
    }
}
