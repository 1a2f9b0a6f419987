//! How the HCA stops: CLOSE_HCA, SYS_DIS, the reset register, a reset of the bus. infinihost 1.5, 3.8.

use super::eq::Events;
use super::mpt::KeyTable;
use super::uar::Uar;
use super::{InfiniHost, System, timers};
use crate::machine::Bus;

impl InfiniHost {
    /// All contexts vanish, no DMA afterwards, pins released.
    pub(super) fn stop(&mut self, bus: &mut dyn Bus) {
        self.events = Events::default();
        self.uar = Uar::new(12);
        self.chip.keys = KeyTable::default();
        self.chip.pci.set_pin(bus, false);
    }

    /// Firmware as after power-on: what both resets have in common.
    fn power_on(&mut self, bus: &mut dyn Bus) {
        self.stop(bus);
        self.system = System::PowerOn;
        self.hcr = Default::default();
        self.delayed.clear();
        self.chip.catas.clear();
        self.chip.memory.ddr.forget();
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

    /// A reset of the bus.
    pub(super) fn bus_reset(&mut self, bus: &mut dyn Bus) {
        self.power_on(bus);
        self.chip.pci.reset(bus);
        self.chip.memory.bus_master = false;
        self.silent_until = bus.now();
    }
}
