//! How the HCA stops: CLOSE_HCA, SYS_DIS, the reset register, a reset of the bus. infinihost 1.5, 3.8.

use super::cq::Cqs;
use super::eq::Events;
use super::mpt::KeyTable;
use super::qp::Qps;
use super::record::Records;
use super::srq::Srqs;
use super::uar::Uar;
use super::{InfiniHost, System, timers};
use crate::machine::Bus;
use hca_abi::infinihost::eqe::{Eqe, EventType};
use hca_abi::infinihost::regs::CatasKind;

impl InfiniHost {
    /// All contexts vanish, no DMA afterwards, pins released.
    pub(super) fn stop(&mut self, bus: &mut dyn Bus) {
        let holdings = self.holdings();
        if holdings.running {
            self.left = holdings;
        }
        for port in self.ports.node.external_ports() {
            self.stop_port(bus, port);
        }
        self.ports.forget_queues();
        self.work.clear();
        self.qps = Qps::default();
        self.srqs = Srqs::default();
        self.cqs = Cqs::default();
        self.events = Events::default();
        self.uar = Uar::new(self.mode(), 12);
        self.chip.keys = KeyTable::default();
        self.chip.records = Records::default();
        self.chip.pci.set_pin(bus, false);
        bus.cancel_timer(timers::WORK);
        bus.cancel_timer(timers::TRAP);
        bus.cancel_timer(timers::WATCH);
    }

    /// Firmware as after power-on: what both resets have in common.
    fn power_on(&mut self, bus: &mut dyn Bus) {
        self.stop(bus);
        self.system = System::PowerOn;
        self.hcr = Default::default();
        self.delayed.clear();
        self.ports = self.ports.powered_on(&self.config);
        self.chip.catas.clear();
        self.chip.memory.forget();
        bus.cancel_timer(timers::COMMAND);
    }

    /// A store to the reset register: firmware, configuration space and messages are as after power-on. The driver
    /// has saved what it wants back.
    pub(super) fn software_reset(&mut self, bus: &mut dyn Bus) {
        self.power_on(bus);
        self.chip.pci.reset(bus);
        self.chip.memory.bus_master = false;
        self.silent_until = bus.now().after(self.config.reset_time);
    }

    /// Breaks the HCA, as a test's fault: an event if one can be told, the error buffer, and from then on nothing but a
    /// reset helps. infinihost 2.6, 4.3.
    pub fn inject_catastrophic(&mut self, bus: &mut dyn Bus, kind: CatasKind) {
        if kind != CatasKind::INTERNAL {
            let mut eqe = Eqe::ZERO;
            eqe.set_event_type(EventType::LOCAL_CATASTROPHIC)
                .set_syndrome(kind.0);
            self.events.post(&mut self.chip, bus, &eqe);
        }
        self.chip.catas.raise(kind);
    }

    /// A reset of the bus.
    pub(super) fn bus_reset(&mut self, bus: &mut dyn Bus) {
        self.power_on(bus);
        self.chip.pci.reset(bus);
        self.chip.memory.bus_master = false;
        self.silent_until = bus.now();
    }
}
