//! SCSI over InfiniBand: one guest has a disk in memory, the other uses it.

use super::{Case, Outcome, Terms, holds, wait_active, with_words};
use crate::vm::lab::Lab;

/// All of them, in this order.
pub const CASES: &[Case] = &[
    Case::new("SRP login", login).may_say(MAY_SAY),
    Case::new("SRP discovery", discovery),
    Case::new("SRP filesystem", filesystem),
    Case::new("SRP reconnect", reconnect).may_say(FLAP),
    Case::new("SRP logout", logout),
];

/// What the drivers say of an HCA that registers memory by tables alone.
const MAY_SAY: &[&str] = &["FR is not supported", "unsafe global rkey", "target_core"];

/// What an initiator says when its path is gone for a while.
const FLAP: &[&str] = &[
    "ib_srp",
    "scsi host",
    "srpt",
    "I/O error",
    "rejecting I/O",
    "reconnect",
    "sd ",
];

fn login(lab: &mut Lab, _: &Terms) -> Outcome {
    // An ACL has the initiator's port GUID.
    let guid = with_words(lab, 2, "tr -d : < $port/gids/0 | tail -c 17", 10)?;
    let script = format!("bash /opt/srpt.sh mthca0 64 {}", guid.trim());
    lab.ok(1, &script, 40)?;
    let script = "guid=$(sed s/^0x// /sys/module/ib_srpt/parameters/srpt_service_guid); guid=$(printf %016x $((16#$guid))); echo id_ext=$guid,ioc_guid=$guid,dgid=$(tr -d : < $port/gids/0),pkey=ffff,service_id=$guid";
    let target = with_words(lab, 1, script, 10)?;
    let target = target.trim();
    let script = format!(
        "modprobe -a sd_mod ext4 && modprobe ib_srp && echo {target} > /sys/class/infiniband_srp/srp-mthca0-1/add_target && until_ 50 ls /dev/sda && lsblk /dev/sda"
    );
    let said = with_words(lab, 2, &script, 60)?;
    holds(&said, &["64M"])?;
    Ok(String::new())
}

/// The subnet administrator knows which ports have disks, and what those say of them.
fn discovery(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "smpquery portinfo $(lid_of guest-1) 1 | grep IsDeviceManagement && saquery PIR $(lid_of guest-1) | grep IsDeviceManagement; echo $?; srp_daemon -oac -vvv -d /dev/infiniband/umad0 2>&1 | tail -20; until_ 20 sh -c 'srp_daemon -oac -d /dev/infiniband/umad0 | grep id_ext' && srp_daemon -oac -d /dev/infiniband/umad0";
    let said = with_words(lab, 2, script, 60)?;
    holds(&said, &["id_ext=", "ioc_guid=", "service_id="])?;
    Ok(String::new())
}

fn filesystem(lab: &mut Lab, terms: &Terms) -> Outcome {
    let mib = if terms.quick { 8 } else { 40 };
    let script = format!(
        "mkfs.ext4 -q /dev/sda && mkdir -p /mnt/srp && mount /dev/sda /mnt/srp && head -c {mib}M /dev/urandom > /tmp/data && cp /tmp/data /mnt/srp/ && sync && umount /mnt/srp && e2fsck -fn /dev/sda && echo 3 > /proc/sys/vm/drop_caches && mount /dev/sda /mnt/srp && cmp /tmp/data /mnt/srp/data && sha256sum /mnt/srp/data"
    );
    lab.ok(2, &script, 120)?;
    Ok(format!("{mib} MiB written and read"))
}

/// The cable of the target is out for a while; what is read afterwards is what was written.
fn reconnect(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "cd /sys/class/srp_remote_ports/*/ && echo 2 > reconnect_delay; echo 5 > fast_io_fail_tmo; echo 60 > dev_loss_tmo; cat reconnect_delay";
    lab.ok(2, script, 10)?;
    lab.command("down 1 guest-1")?;
    let read = "echo 3 > /proc/sys/vm/drop_caches; timeout 60 dd if=/dev/sda of=/dev/null bs=64k count=64 iflag=direct; true";
    let running = lab.start_script(2, read, 70)?;
    let waited = lab.ok(2, "sleep 3", 20);
    lab.command("up 1 guest-1")?;
    waited?;
    wait_active(lab)?;
    lab.end_script(2, read, &running)?;
    let script = "until_ 200 sh -c 'grep -q running /sys/class/srp_remote_ports/*/state || grep -q online /sys/class/srp_remote_ports/*/state'; until_ 100 dd if=/dev/sda of=/dev/null bs=4k count=1 iflag=direct && umount -l /mnt/srp; mount /dev/sda /mnt/srp && cmp /tmp/data /mnt/srp/data";
    with_words(lab, 2, script, 90)?;
    Ok(String::new())
}

fn logout(lab: &mut Lab, _: &Terms) -> Outcome {
    let script = "umount /mnt/srp; echo 1 > /sys/class/srp_remote_ports/$(ls /sys/class/srp_remote_ports | head -1)/delete && sleep 1 && rmmod ib_srp && rm -f /tmp/data";
    lab.ok(2, script, 40)?;
    let script = "T=/sys/kernel/config/target/srpt; for t in $T/*/*/; do [ -e $t/enable ] && echo 0 > $t/enable; done; true";
    lab.ok(1, script, 20)?;
    Ok(String::new())
}
