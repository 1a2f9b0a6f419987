//! The kernel's doorbell page: UAR page of BAR 2. infinihost 2.7 to 2.9.
//!
//! A doorbell is one 64-bit store. The page is mapped uncached, so doorbells arrive in program order.

use core_ib::platform::{DoorbellPage, Platform, Registers, Result};
use hca_abi::infinihost::doorbell::{EqCommand, EqDoorbell, ReceiveDoorbell};
use hca_abi::infinihost::pci::BAR_UAR;
use hca_abi::infinihost::regs::uar;

/// Bytes of a page: INIT_HCA is told so.
pub const PAGE: usize = 4096;

/// One doorbell page.
#[derive(Debug)]
pub struct Uar<R> {
    page: DoorbellPage<R>,
    /// Its number, which contexts name.
    pub index: u32,
}

impl<R: Registers> Uar<R> {
    /// Maps page `index`. Set-up only.
    pub fn map<P: Platform<Registers = R>>(machine: &P, index: u32) -> Result<Self> {
        let at = u64::from(index).saturating_mul(PAGE as u64);
        let page = DoorbellPage::map(machine, BAR_UAR, at)?;
        Ok(Self { page, index })
    }

    /// The doorbell of a send queue in either mode, encoded. Any context, as all doorbells.
    #[inline]
    pub fn ring_send(&self, doorbell: u64) {
        self.page.ring::<{ uar::SEND }>(doorbell);
    }

    /// For a receive queue or an SRQ. T-mode.
    #[inline]
    pub fn ring_receive(&self, doorbell: ReceiveDoorbell) {
        self.page.ring::<{ uar::RECEIVE }>(doorbell.encode());
    }

    /// For a CQ in either mode, encoded.
    #[inline]
    pub fn ring_cq(&self, doorbell: u64) {
        self.page.ring::<{ uar::CQ }>(doorbell);
    }

    /// For an EQ. T-mode.
    #[inline]
    pub fn ring_eq(&self, eqn: u8, command: EqCommand, parameter: u32) {
        let doorbell = EqDoorbell {
            command,
            eqn,
            parameter,
        };
        self.page.ring::<{ uar::EQ }>(doorbell.encode());
    }
}
