//! A program: what the guest does, step by step, as bytes say.

use super::forms::{self, Card, Form};
use super::machine::{Machine, REGIONS};
use super::rings::Rings;
use crate::hca::infinihost::{Config, Variant};
use core::time::Duration;
use core_ib::wire::Bth;
use core_ib::wire::mad::{
    AttributeId, Mad, Method, MgmtClass, PortInfo, PortPhysState, PortState, Smp,
};
use core_ib::wire::packet::{
    Deth, Extended, FlowLabel, Grh, Headers, Lnh, Lrh, Opcode as Op, PktLen, Vl, seal,
};
use core_ib::{Gid, Guid, Lid, PKey, Psn, QKey, Qpn, Sl};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::regs::{self, HcrControl};
use zerocopy::IntoBytes;

/// Region of configuration space.
const CONFIG: u32 = 7;

/// The bytes that are left. Behind the last, all are zero.
pub struct Script<'a>(&'a [u8]);

impl Script<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn dword(&mut self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }

    pub fn quad(&mut self) -> u64 {
        u64::from(self.dword()) | u64::from(self.dword()) << 32
    }

    /// Changes `data` here and there; mostly not.
    pub fn edit(&mut self, data: &mut [u8]) {
        let how = self.byte();
        if how < 0xc0 {
            return;
        }
        for _ in 0..=how & 7 {
            let place = self.word();
            let wide = place & 0x8000 != 0;
            let value = if wide {
                self.dword()
            } else {
                u32::from(self.byte()) << 24
            };
            let at = usize::from(place & 0x7fff) % data.len().max(1);
            let len = if wide { 4 } else { 1 };
            let places = data.iter_mut().skip(at).take(len);
            places
                .zip(value.to_be_bytes())
                .for_each(|(to, from)| *to = from);
        }
    }

    /// An address that means something, or one that does not.
    fn address(&mut self) -> u64 {
        let places = [
            forms::IN,
            forms::OUT,
            forms::AVS,
            forms::DATA,
            forms::BUFFER,
            forms::PAGES,
            forms::cq_at(forms::CQS[0]),
            forms::eq_at(1),
            forms::BAR4,
            forms::BAR4 + (6 << 16),
            forms::Record::Sq(forms::QPS[0].qpn).at(),
            forms::BAR0,
            0xff8,
            REGIONS * super::machine::REGION - 16,
            u64::MAX - 7,
        ];
        match self.byte() {
            0xff => self.quad(),
            which => forms::pick(&places, which).wrapping_add(u64::from(which >> 4) * 8),
        }
    }
}

/// One guest and what it remembers.
pub struct Guest<'a> {
    pub machine: Machine,
    script: Script<'a>,
    card: Card,
    rings: Rings,
    /// Commands of [`start`](Self::start) that were refused.
    pub refused: Vec<(Opcode, u8)>,
    /// A packet that was on the wire.
    kept: Vec<u8>,
}

/// Takes `bytes` for a program and lets a guest run it.
///
/// The first byte says what card it is, the second how far a driver has come; then come the steps.
///
/// # Panics
///
/// If the device does, if one of its calls does not end, or if it reaches memory that is not mapped: that is the defect
/// being looked for.
pub fn drive_untrusted(bytes: &[u8]) {
    let Some(mut guest) = Guest::new(bytes) else {
        return;
    };
    guest.run();
    guest.machine.end();
}

/// Some card.
fn config(which: u8) -> Config {
    let variant = forms::pick(&Variant::ALL, which & 7);
    let mut config = Config::of(variant, Guid(0x0002_c900_0000_0100));
    if config.ddr_len != 0 {
        config.ddr_len = 16 << 20;
        config.hidden_ddr = which & 8 != 0;
    }
    config.msix = which & 0x10 == 0;
    if which & 0x20 != 0 {
        config.ports = 1;
    }
    if which & 0x40 != 0 {
        config.command_time = Duration::from_micros(20);
    }
    if which & 0x80 != 0 {
        config.reset_time = Duration::from_micros(20);
    }
    config
}

impl<'a> Guest<'a> {
    /// With its card, as far as the first two bytes say. `None` if there is no memory to be had.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut script = Script(bytes);
        let config = config(script.byte());
        let started = script.byte();
        let card = Card {
            memfree: config.ddr_len == 0,
            ports: config.ports,
        };
        let machine = Machine::new(config)?;
        let mut guest = Guest {
            machine,
            script,
            card,
            rings: Rings::new(card),
            refused: Vec::new(),
            kept: Vec::new(),
        };
        guest.start(started);
        Some(guest)
    }

    /// All steps.
    pub fn run(&mut self) {
        while !self.script.0.is_empty() {
            self.step();
        }
    }

    /// As far as a driver has come: nowhere, BARs have addresses, the HCA is initialised, everything is in use.
    fn start(&mut self, how: u8) {
        if how & 3 == 0 {
            return;
        }
        for (at, address) in [
            (0x10, forms::BAR0),
            (0x18, forms::BAR2),
            (0x20, forms::BAR4),
        ] {
            self.machine.store(CONFIG, at, &address.to_le_bytes());
        }
        self.machine.store(CONFIG, 4, &[6, 0]);
        self.machine
            .store(CONFIG, 0x40, &0x8000_0000_u32.to_le_bytes());
        if how & 3 == 1 {
            return;
        }
        if self.card.memfree {
            let lending = [
                Opcode::MAP_FA,
                Opcode::RUN_FW,
                Opcode::SET_ICM_SIZE,
                Opcode::MAP_ICM_AUX,
                Opcode::MAP_ICM,
            ];
            lending.iter().for_each(|opcode| self.plain(*opcode, &[0]));
        } else {
            self.plain(Opcode::SYS_EN, &[0]);
        }
        self.plain(Opcode::INIT_HCA, &[0]);
        self.plain(Opcode::SW2HW_MPT, &[0]);
        self.plain(Opcode::WRITE_MTT, &[0]);
        self.plain(Opcode::SW2HW_MPT, &[1, 2]);
        self.plain(Opcode::SW2HW_EQ, &[0, 1, 2]);
        self.plain(Opcode::MAP_EQ, &[1, 6]);
        if how & 3 == 2 {
            return;
        }
        self.plain(Opcode::SW2HW_CQ, &[0, 1]);
        self.plain(Opcode::SW2HW_SRQ, &[0]);
        let ports: Vec<_> = (0..self.card.ports).collect();
        self.plain(Opcode::INIT_IB, &ports);
        for port in 1..=self.card.ports {
            self.machine.link(port, true);
            for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
                self.set_port(port, state);
            }
        }
        if how & 4 == 0 {
            // Software takes QP0 and QP1.
            self.plain(Opcode::CONF_SPECIAL_QP, &[0, 1]);
        }
        let all: Vec<_> = (0..forms::QPS.len() as u8).collect();
        self.plain(Opcode::RST2INIT_QPEE, &all);
        self.plain(Opcode::INIT2RTR_QPEE, &all);
        self.plain(Opcode::RTR2RTS_QPEE, &all);
        self.plain(Opcode::WRITE_MGM, &[0]);
        for qp in forms::QPS.iter().take(2) {
            let av = self.card.av(qp);
            self.machine.write(self.card.av_at(qp), av.as_bytes());
        }
        for (qpn, at) in (0..).zip(forms::HEADERS) {
            let mut packet = [0; 64];
            // Without the checksums, which the HCA makes.
            if let Ok(written) = datagram(2, qpn).write(&[], &mut packet) {
                self.machine.write(at, written);
            }
        }
    }

    /// A command about each of these, as a driver gives it.
    pub fn plain(&mut self, opcode: Opcode, which: &[u8]) {
        for which in which {
            let form = self.card.form(opcode, *which);
            let queue = match opcode {
                Opcode::SW2HW_EQ => Some(forms::eq_at(form.object)),
                Opcode::SW2HW_CQ => Some(forms::cq_at(form.object)),
                _ => None,
            };
            if let Some(at) = queue {
                (0..16).for_each(|entry| self.machine.write(at + entry * 32 + 31, &[0x80]));
            }
            self.machine.write(forms::IN, &form.mailbox);
            self.post(&form, forms::OUT, false);
            if self.control().go {
                self.machine.tick();
            }
            if self.control().status != CmdStatus::OK {
                self.refused.push((opcode, *which));
            }
        }
    }

    /// How the last command ended.
    fn control(&mut self) -> HcrControl {
        let dword = self.machine.load(0, regs::HCR_CONTROL as u64, 4) as u32;
        HcrControl::decode(dword.swap_bytes())
    }

    /// Writes the command block, last dword last.
    fn post(&mut self, form: &Form, out: u64, event: bool) {
        let control = HcrControl::post(form.opcode, form.modifier, event);
        let dwords = [
            (form.immediate >> 32) as u32,
            form.immediate as u32,
            form.object,
            (out >> 32) as u32,
            out as u32,
            regs::token_dword(7),
            control.encode(),
        ];
        for (at, dword) in (regs::HCR as u64..).step_by(4).zip(dwords) {
            self.machine.store(0, at, &dword.to_be_bytes());
        }
    }

    /// As a subnet manager does: reads the port, and writes it back with another state.
    fn set_port(&mut self, port: u8, state: PortState) {
        let mut smp = Smp::lid_routed(Method::GET, AttributeId::PORT_INFO, port.into());
        for method in [Method::GET, Method::SET] {
            smp.header.method = method;
            let mut form = self.card.form(Opcode::MAD_IFC, 0);
            form.object = port.into();
            self.machine.write(forms::IN, &Mad(smp.to_bytes()).0);
            self.post(&form, forms::OUT, false);
            self.machine.tick();
            let reply = Smp::from_bytes(&self.machine.read::<256>(forms::OUT));
            let Ok(mut info) = reply.get::<PortInfo>() else {
                return;
            };
            (info.state, info.phys_state) = (state, PortPhysState::NO_CHANGE);
            info.lid = Lid(forms::pick(&forms::LIDS, port - 1));
            info.master_sm_lid = Lid(3);
            if smp.put(&info).is_err() {
                return;
            }
        }
    }

    /// One step. Each takes what it needs from the script.
    fn step(&mut self) {
        let (machine, script) = (&mut self.machine, &mut self.script);
        match script.byte() & 0x1f {
            0..=6 => self.command(),
            7 | 8 => {
                let (region, at) = (u32::from(script.byte() & 7), script.dword().into());
                let value = script.quad().to_le_bytes();
                let len = forms::pick(&[4, 8, 1, 2], script.byte());
                machine.store(region, at, value.get(..len).unwrap_or_default());
            }
            9 => {
                let (region, at) = (u32::from(script.byte() & 7), script.dword().into());
                machine.load(region, at, forms::pick(&[4, 8, 1, 2], script.byte()));
            }
            10 => {
                let registers = [
                    regs::HCR as u64,
                    0x8_0698,
                    0x8_0700,
                    0xf_00d8,
                    0xf_0800,
                    0xf_0010,
                ];
                let at = forms::pick(&registers, script.byte()) + u64::from(script.byte() & 7) * 4;
                machine.load(0, at, 4);
                machine.store(0, at, &script.dword().to_be_bytes());
            }
            11..=13 => self.rings.send(machine, script),
            14 | 15 => self.rings.receive(machine, script),
            16 | 17 => self.rings.complete(machine, script),
            18 => self.rings.event(machine, script),
            19 | 20 => {
                let at = script.address();
                let mut data = machine.read::<64>(at);
                script.edit(&mut data);
                machine.write(at, &data);
            }
            21 => {
                let table = u64::from(script.byte() & 15) << 16;
                let at = table + u64::from(script.word() & 0xfff8);
                machine.store(4, at, &script.quad().to_be_bytes());
            }
            22..=25 => self.deliver(),
            26 => self.arrive(),
            27 => {
                let how = script.byte();
                let region = u64::from(how & 15);
                match how >> 4 & 3 {
                    0 => machine.unmap(Some(region)),
                    1 => machine.unmap((how == 0x1f).then_some(region)),
                    _ => machine.map(region, how & 0x40 != 0, how & 0x80 != 0),
                }
            }
            28 | 29 => machine.tick(),
            30 => {
                let (how, port) = (script.byte(), script.byte() & 3);
                match how & 7 {
                    0 | 1 => machine.link(port, how & 1 != 0),
                    2 | 3 => machine.around(|around| around.full = how & 1 != 0),
                    4 | 5 => machine.room(port, how >> 3 & 15),
                    6 => self.set_port(1 + (port & 1), PortState(how >> 3)),
                    _ => {
                        let at = u64::from(script.byte() & 0xfc);
                        machine.store(CONFIG, at, &script.dword().to_le_bytes());
                    }
                }
            }
            _ => match script.byte() {
                0 => machine.reset(),
                1 => machine.store(0, regs::RESET as u64, &regs::RESET_VALUE.to_be_bytes()),
                how => self.start(how),
            },
        }
    }

    /// A command as a driver gives it, changed here and there; or anything.
    fn command(&mut self) {
        let script = &mut self.script;
        let opcode = match script.byte() {
            opcode @ 0..=0x40 => opcode.into(),
            opcode @ 0xf6.. => 0xf00 | u16::from(opcode),
            _ => script.word() & 0xfff,
        };
        let mut form = self.card.form(Opcode(opcode), script.byte());
        script.edit(&mut form.mailbox);
        if !form.mailbox.is_empty() {
            self.machine.write(forms::IN, &form.mailbox);
        }
        let how = script.byte();
        let (mut out, mut event) = (forms::OUT, false);
        if how & 0x80 != 0 {
            event = how & 1 != 0;
            if how & 2 != 0 {
                form.modifier = script.byte();
            }
            if how & 4 != 0 {
                form.object ^= script.dword();
            }
            if how & 8 != 0 {
                form.immediate = script.address();
            }
            if how & 16 != 0 {
                out = script.address();
            }
        }
        self.post(&form, out, event);
    }

    /// Packets on the wire come to the other port; the first of them may be changed, lost, or come again later.
    fn deliver(&mut self) {
        let how = self.script.byte();
        for count in 0..=how & 7 {
            let next = self.machine.around(|around| around.wire.pop_front());
            let Some((port, mut packet)) = next else {
                return;
            };
            if count == 0 && how & 0x08 != 0 {
                self.script.edit(&mut packet);
                if how & 0x10 == 0 {
                    let _ = seal(&mut packet);
                }
            }
            if how & 0x20 != 0 {
                self.kept.clone_from(&packet);
            }
            if how & 0xc0 != 0xc0 {
                let other = (3 - port.clamp(1, 2)).min(self.card.ports);
                self.machine.arrive(other, &packet);
            }
        }
    }

    /// A packet out of nowhere: one that was kept, one that nobody sent, or no packet.
    fn arrive(&mut self) {
        let script = &mut self.script;
        let how = script.byte();
        let port = 1 + (how & 1);
        let mut packet = [0; 512];
        let mut packet = match how >> 1 & 7 {
            0..=2 => self.kept.clone(),
            3 => packet.get(..usize::from(how)).unwrap_or_default().to_vec(),
            kind => {
                let mut mad = Mad([0; 256]);
                let mut header = mad.header();
                (header.base_version, header.class_version) = (1, 1);
                header.class = MgmtClass(forms::pick(&[1, 0x81, 3, 4], how >> 4));
                header.method = Method(forms::pick(&[1, 2, 0x81, 5], how >> 6));
                header.attribute = AttributeId(u16::from(script.byte() & 0x3f));
                mad.set_header(&header);
                let qpn = forms::pick(&[0, 1, 0xff_ffff, forms::QPS[0].qpn], kind);
                let headers = datagram(port, qpn);
                let written = headers.write(&mad.0, &mut packet);
                written.map(|packet| packet.to_vec()).unwrap_or_default()
            }
        };
        script.edit(&mut packet);
        let _ = seal(&mut packet);
        self.machine.arrive(port, &packet);
    }
}

/// Headers of a datagram to a QP of `port`, or to a group.
fn datagram(port: u8, qpn: u32) -> Headers {
    let group = qpn == Qpn::MULTICAST.get();
    let (vl, q_key) = match qpn {
        0 => (Vl::MANAGEMENT, QKey(0)),
        1 => (Vl::new(0), QKey::GSI),
        _ => (Vl::new(0), QKey(forms::Q_KEY)),
    };
    let src_qp = Qpn::new(if qpn < 2 { qpn } else { 0x30 });
    let lid = if group {
        0xc001
    } else {
        forms::pick(&forms::LIDS, port - 1)
    };
    let grh = Grh {
        traffic_class: 0,
        flow_label: FlowLabel::new(0),
        pay_len: 0,
        nxt_hdr: 0,
        hop_limit: 1,
        sgid: Gid([0xfe; 16]),
        dgid: Gid([0xff; 16]),
    };
    Headers {
        lrh: Lrh {
            vl,
            sl: Sl::new(0),
            lnh: Lnh::Local,
            dlid: Lid(lid),
            pkt_len: PktLen::default(),
            slid: Lid(3),
        },
        grh: group.then_some(grh),
        bth: Bth::new(Op::UD_SEND_ONLY, PKey::DEFAULT, Qpn::new(qpn), Psn::new(0)),
        extended: Extended::datagram(Deth { q_key, src_qp }),
    }
}
