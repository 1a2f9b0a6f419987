//! The firmware's management agents: MAD_IFC, and what a successful Set tells the driver. infinihost 3.13, 8.1.
//!
//! The firmware answers for subnet management, performance counters and its vendor's classes. It does not tell when a
//! subnet manager changed a port through it: whoever hands a Set over learns it here, from the request and from the
//! port before and after.

use crate::cmd::table::MadIfc;
use crate::cmd::{Channel, CmdError};
use crate::inner::Inner;
use core_ib::platform::Platform;
use core_ib::verbs::{
    DeviceModify, Mad256, MadFlags, MadOutcome, MadSource, PortEvent, VerbsError, WcFlags,
};
use core_ib::wire::mad::{
    Attribute, AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass, NodeDescription,
    PortInfo, Smp,
};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use hca_abi::infinihost::mad_ifc::MadIfcInput;

/// Classes of the vendor that the firmware knows. infinihost 8.1.
const VENDOR_CLASSES: [MgmtClass; 2] = [MgmtClass(0x09), MgmtClass(0x0a)];

/// Reads an attribute of our own subnet management agent, through `port`. For an HCA that is being opened;
/// afterwards [`Inner::sma_get`].
pub(crate) fn sma_get<A: Attribute, P: Platform>(
    cmd: &Channel<'_, P>,
    port: u8,
    modifier: u32,
) -> Result<A, VerbsError> {
    read(port, modifier, |command| {
        cmd.execute(command, &|| ()).map(|(response, _)| response)
    })
}

fn read<A: Attribute>(
    port: u8,
    modifier: u32,
    execute: impl FnOnce(&MadIfc<'_>) -> Result<Mad256, CmdError>,
) -> Result<A, VerbsError> {
    let smp = Smp::lid_routed(Method::GET, A::ID, modifier);
    let mut mad = Mad::ZERO;
    let unreadable = |_| VerbsError::NotFound {
        what: "attribute of the port",
    };
    mad.set_front(&smp).map_err(unreadable)?;
    let response = execute(&MadIfc {
        port,
        source_lid: 0,
        ignore_mkey: true,
        ignore_bkey: true,
        extended: false,
        request: &MadIfcInput::local(mad.0),
    })?;
    let response = Mad(response);
    let status = response.header().status;
    if status != MadStatus::OK {
        return Err(VerbsError::CommandFailed {
            opcode: Opcode::MAD_IFC.0,
            status: status.0 as u8,
        });
    }
    response.get().map_err(unreadable)
}

/// Does the firmware have an agent for it? infinihost 8.1.
fn is_for_firmware(header: &MadHeader) -> bool {
    let (class, method) = (header.class, header.method);
    let known = [Method::GET, Method::SET].contains(&method);
    if class == MgmtClass::SUBN_LID || class == MgmtClass::SUBN_DR {
        let attribute = header.attribute;
        return (known || method == Method::TRAP_REPRESS)
            && attribute != AttributeId::SM_INFO
            && attribute.0 < 0xff00;
    }
    known && (class == MgmtClass::PERF || VENDOR_CLASSES.contains(&class))
}

impl<P: Platform> Inner<'_, P> {
    /// Reads an attribute of our own subnet management agent, through `port`.
    pub fn sma_get<A: Attribute>(&self, port: u8, modifier: u32) -> Result<A, VerbsError> {
        read(port, modifier, |command| {
            self.command(command).map(|(response, _)| response)
        })
    }

    pub(crate) fn process_mad(
        &self,
        port: u8,
        flags: MadFlags,
        source: Option<&MadSource>,
        request: &Mad256,
        response: &mut Mad256,
    ) -> Result<MadOutcome, VerbsError> {
        self.check_port(port)?;
        let request = Mad(*request);
        let header = request.header();
        if !is_for_firmware(&header) {
            return Err(VerbsError::Unsupported {
                feature: "this management class or method in the firmware",
            });
        }
        let subnet_set = header.method == Method::SET && header.class.is_smp();
        let before = if subnet_set && header.attribute == AttributeId::PORT_INFO {
            self.port_info(port).ok()
        } else {
            None
        };
        let mut input = MadIfcInput::local(request.0);
        if let Some(source) = source {
            describe(source, &mut input);
        }
        let command = MadIfc {
            port,
            source_lid: source.map_or(0, |source| source.wc.slid.0),
            ignore_mkey: flags.contains(MadFlags::IGNORE_MKEY),
            ignore_bkey: flags.contains(MadFlags::IGNORE_BKEY),
            extended: source.is_some(),
            request: &input,
        };
        match self.command(&command) {
            Ok((answer, _)) => *response = answer,
            Err(error) if error.status() == Some(CmdStatus::BAD_PKT) => {
                return Ok(MadOutcome::Rejected);
            }
            Err(error) => return Err(error.into()),
        }
        if header.method == Method::TRAP_REPRESS {
            return Ok(MadOutcome::Consumed);
        }
        let mut answer = Mad(*response);
        let mut answered = answer.header();
        if subnet_set && answered.status.0 & !MadStatus::DIRECTION == 0 {
            self.note_set(port, header.attribute, before.as_ref(), &request);
        }
        if header.class.is_smp() && header.attribute == AttributeId::NODE_DESCRIPTION {
            self.describe_node(&mut answer);
        }
        if header.class == MgmtClass::SUBN_DR {
            answered.status.0 |= MadStatus::DIRECTION;
            answer.set_header(&answered);
        }
        *response = answer.0;
        Ok(MadOutcome::Reply)
    }

    /// The owner's text stands in for the firmware's.
    fn describe_node(&self, answer: &mut Mad) {
        let text = self.description.with(|text| *text);
        if let Some(text) = text {
            // The data of an SMP has room for 64 bytes.
            let _ = answer.put(&NodeDescription { text });
        }
    }

    /// What a successful Set of a subnet management attribute means. An event of a change that cannot be read is
    /// raised all the same (verbs 2.4).
    fn note_set(&self, port: u8, attribute: AttributeId, before: Option<&PortInfo>, request: &Mad) {
        match attribute {
            AttributeId::PORT_INFO => self.note_port_info(port, before, request),
            AttributeId::P_KEY_TABLE => {
                if self.refresh_pkeys(port).unwrap_or(true) {
                    self.port_event(port, PortEvent::PkeyChange);
                }
            }
            AttributeId::GUID_INFO => {
                if self.refresh_gids(port).unwrap_or(true) {
                    self.port_event(port, PortEvent::GidChange);
                }
            }
            _ => return,
        }
        self.wake.wake();
    }

    fn note_port_info(&self, port: u8, before: Option<&PortInfo>, request: &Mad) {
        let Ok(wanted) = request.get::<PortInfo>() else {
            return;
        };
        let after = self.port_info(port).ok();
        let changed = |field: fn(&PortInfo) -> u64| match (before, &after) {
            (Some(before), Some(after)) => field(before) != field(after),
            _ => true,
        };
        if changed(|info| u64::from(info.lid.0) << 8 | u64::from(info.lmc)) {
            self.port_event(port, PortEvent::LidChange);
        }
        if changed(|info| u64::from(info.master_sm_lid.0) << 8 | u64::from(info.master_sm_sl.get()))
        {
            self.port_event(port, PortEvent::SmChange);
        }
        if changed(|info| info.gid_prefix) && self.refresh_gids(port).unwrap_or(true) {
            self.port_event(port, PortEvent::GidChange);
        }
        if wanted.client_reregister {
            self.port_event(port, PortEvent::ClientReregister);
        }
    }

    pub(crate) fn modify_device(&self, change: &DeviceModify<'_>) -> Result<(), VerbsError> {
        self.cmd.health().check()?;
        if change.sys_image_guid.is_some() {
            return Err(VerbsError::Unsupported {
                feature: "setting the system image GUID",
            });
        }
        if let Some(text) = change.node_description {
            self.description.with(|kept| *kept = Some(*text));
        }
        Ok(())
    }
}

/// How the MAD came, for the firmware.
fn describe(source: &MadSource, input: &mut MadIfcInput) {
    let wc = &source.wc;
    let grh = wc.flags.contains(WcFlags::GRH);
    input
        .info
        .set_local_qpn(wc.qpn.get())
        .set_remote_qpn(wc.src_qp.get())
        .set_sl(wc.sl.get())
        .set_grh(grh)
        .set_path_bits(wc.dlid_path_bits)
        .set_slid(wc.slid.0)
        .set_pkey_index(wc.pkey_index);
    if grh {
        input.set_grh(&source.grh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: MgmtClass, method: Method, attribute: u16) -> MadHeader {
        MadHeader {
            class,
            method,
            attribute: AttributeId(attribute),
            ..MadHeader::default()
        }
    }

    #[test]
    fn the_firmware_gets_what_it_has_an_agent_for_and_nothing_else() {
        let ours = |class, method, attribute| is_for_firmware(&header(class, method, attribute));
        assert!(ours(MgmtClass::SUBN_DR, Method::GET, 0x15));
        assert!(ours(MgmtClass::SUBN_LID, Method::TRAP_REPRESS, 0x02));
        assert!(ours(MgmtClass::PERF, Method::SET, 0x12));
        assert!(ours(MgmtClass(0x0a), Method::GET, 0x15));
        assert!(!ours(MgmtClass::SUBN_LID, Method::GET, 0x20)); // SMInfo: the subnet manager's
        assert!(!ours(MgmtClass::SUBN_LID, Method::GET, 0xff10));
        assert!(!ours(MgmtClass::SUBN_LID, Method::TRAP, 0x02));
        assert!(!ours(MgmtClass::SUBN_LID, Method::GET_RESP, 0x15));
        assert!(!ours(MgmtClass(0x03), Method::GET, 0x35)); // subnet administration
    }
}
