//! The HCA and its ports: query and modify. verbs 2.

use super::tools::{
    PATIENCE, QUIET, activate, bring_up, change_port, get, info, is_invalid_attr, is_invalid_port,
    is_unsupported, lid, set_pkeys, train, wait_for,
};
use super::{Features, Rig, Side};
use core_ib::platform::Platform as _;
use core_ib::verbs::{
    AsyncEvent, Device, DeviceCaps, DeviceModify, PortCache, PortEvent, PortModify,
};
use core_ib::wire::mad::{Capability, NodeDescription, NodeInfo};
use core_ib::{Gid, Lid, PKey};

/// The asynchronous events of a while.
fn events<R: Rig>(rig: &R, side: Side) -> Vec<AsyncEvent> {
    rig.machine(side).sleep(QUIET);
    core::iter::from_fn(|| rig.hca(side).next_async_event()).collect()
}

/// verbs 2.1, T016.
pub fn every_limit_of_a_feature_that_there_is_is_at_least_one<R: Rig>(rig: &R) {
    for side in Side::BOTH {
        let attr = rig.hca(side).query_device();
        assert_ne!(attr.node_guid.0, 0);
        assert!((1..=2).contains(&attr.port_count));
        for limit in [
            attr.max_qp,
            attr.max_qp_wr,
            attr.max_sge,
            attr.max_cq,
            attr.max_cqe,
        ] {
            assert!(limit >= 1, "{attr:?}");
        }
        for limit in [attr.max_mr, attr.max_pd, attr.max_ah, attr.max_mcast_groups] {
            assert!(limit >= 1, "{attr:?}");
        }
        assert!(
            attr.max_mr_size >= 1 && attr.max_mcast_qp_attach >= 1,
            "{attr:?}"
        );
        assert_ne!(attr.page_sizes & 1 << 12, 0, "pages of 4096 bytes");
        assert!(attr.local_ca_ack_delay <= 31);
        let has = |feature| rig.declared().has(feature);
        if has(Features::SRQ) {
            let limits = [attr.max_srq, attr.max_srq_wr, attr.max_srq_sge];
            assert!(limits.iter().all(|limit| *limit >= 1), "{attr:?}");
        }
        if has(Features::RC) {
            assert!(
                attr.max_rd_atomic >= 1 && attr.max_dest_rd_atomic >= 1,
                "{attr:?}"
            );
        }
        assert_eq!(rig.hca(side).check(), Ok(()));
    }
    let [a, b] = Side::BOTH.map(|side| rig.hca(side).query_device().node_guid);
    assert_ne!(a, b, "two HCAs of the same GUID");
}

/// verbs 2.1: a feature of the suite that has a capability bit is announced by it.
pub fn what_is_declared_is_what_the_capabilities_say<R: Rig>(rig: &R) {
    let caps = rig.hca(Side::A).query_device().caps;
    for (feature, cap) in [
        (Features::SRQ, DeviceCaps::SRQ),
        (Features::SRQ_RESIZE, DeviceCaps::SRQ_RESIZE),
        (Features::CQ_RESIZE, DeviceCaps::CQ_RESIZE),
        (Features::FMR, DeviceCaps::FMR),
        (Features::ATOMICS, DeviceCaps::ATOMICS),
        (Features::PATH_MIGRATION, DeviceCaps::PATH_MIGRATION),
        (Features::SYSTEM_IMAGE, DeviceCaps::SYS_IMAGE_GUID),
        (Features::CHECKSUMS, DeviceCaps::IP_CHECKSUM),
    ] {
        let declared = rig.declared().has(feature);
        assert_eq!(declared, caps.contains(cap), "{feature:?} and {cap:?}");
    }
    let windows = Features::WINDOWS_1 | Features::WINDOWS_2;
    let declared = rig.declared().features.intersects(windows);
    assert_eq!(declared, caps.contains(DeviceCaps::MEMORY_WINDOWS));
}

/// verbs 2.2, T017.
pub fn port_0_and_the_one_after_the_last_do_not_exist<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let count = hca.query_device().port_count;
    for port in 1..=count {
        hca.query_port(port).unwrap();
    }
    for port in [0, count + 1, 255] {
        is_invalid_port(hca.query_port(port));
        is_invalid_port(hca.query_gid(port, 0));
        is_invalid_port(hca.query_pkey(port, 0));
        is_invalid_port(hca.modify_port(port, &PortModify::default()));
    }
}

/// verbs 2.2, T018.
pub fn a_port_with_a_link_and_no_subnet_manager_is_in_init_without_a_lid<R: Rig>(rig: &R) {
    train(rig);
    let attr = rig.hca(Side::A).query_port(1).unwrap();
    assert_eq!((attr.state, attr.phys_state, attr.lid), (2, 5, Lid::NONE));
    assert!(attr.active_mtu <= attr.max_mtu);
    assert!(attr.max_msg_size as usize >= attr.active_mtu.bytes());
    assert!(attr.gid_table_len >= 1 && attr.pkey_table_len >= 1);
    assert_eq!(attr.gid_prefix, Gid::DEFAULT_PREFIX);
    assert!(!attr.is_active());
}

/// verbs 2.2, 10.2, T019.
pub fn a_port_that_is_brought_up_says_so_and_is_then_active_with_its_lid<R: Rig>(rig: &R) {
    train(rig);
    let hca = rig.hca(Side::A);
    while hca.next_async_event().is_some() {}
    bring_up(rig);
    let events = events(rig, Side::A);
    let active = AsyncEvent::Port(1, PortEvent::Active);
    let times = events.iter().filter(|event| **event == active).count();
    assert_eq!(times, 1, "{events:?}");
    let attr = hca.query_port(1).unwrap();
    assert_eq!((attr.state, attr.lid), (4, lid(Side::A)));
    assert_eq!(attr.active_mtu, super::tools::MTU);
    assert_eq!(attr.sm_lid, lid(Side::A));
    assert!(attr.active_width.is_power_of_two() && attr.active_speed.is_power_of_two());
}

/// verbs 2.4, T020.
pub fn gid_0_is_the_subnet_prefix_and_a_guid_of_the_port<R: Rig>(rig: &R) {
    train(rig);
    let hca = rig.hca(Side::A);
    let attr = hca.query_port(1).unwrap();
    let gid = hca.query_gid(1, 0).unwrap();
    assert_eq!(gid.prefix(), attr.gid_prefix);
    assert_eq!(gid.guid(), get::<_, NodeInfo>(hca, 0).port_guid);
    assert_ne!(gid.guid().0, 0);
    hca.query_gid(1, attr.gid_table_len - 1).unwrap();
    is_invalid_attr(hca.query_gid(1, attr.gid_table_len));
}

/// verbs 2.2, T021.
pub fn pkey_0_is_the_default_partition_and_the_table_has_an_end<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let attr = hca.query_port(1).unwrap();
    assert_eq!(hca.query_pkey(1, 0), Ok(PKey::DEFAULT));
    hca.query_pkey(1, attr.pkey_table_len - 1).unwrap();
    is_invalid_attr(hca.query_pkey(1, attr.pkey_table_len));
}

/// verbs 2.4, 10.2, T022, T023.
pub fn a_pkey_table_that_is_rewritten_is_told_and_then_found_in_the_cache<R: Rig>(rig: &R) {
    activate(rig);
    let (hca, machine) = (rig.hca(Side::A), rig.machine(Side::A));
    let table = [0xffff, 0x0012, 0x0000, 0x8012].map(PKey);
    set_pkeys(hca, &table);
    let told = wait_for(machine, PATIENCE, || {
        hca.next_async_event() == Some(AsyncEvent::Port(1, PortEvent::PkeyChange))
    });
    assert!(told, "PKEY_CHANGE did not come");
    for (index, pkey) in (0..).zip(table) {
        assert_eq!(hca.query_pkey(1, index), Ok(pkey), "entry {index}");
    }
    let lock = machine.raw_lock("P_Key cache", false);
    let cache: PortCache<_, 128, 128> = PortCache::new(lock, 1);
    cache.refresh(hca).unwrap();
    for pkey in [0x8012, 0x0012].map(PKey) {
        assert_eq!(cache.find_pkey(pkey), Ok(3), "full members first");
    }
    assert!(cache.find_pkey(PKey(0x0034)).is_err());
}

/// verbs 2.4, 10.2, T024.
pub fn another_lid_lmc_and_prefix_are_told_and_then_seen<R: Rig>(rig: &R) {
    activate(rig);
    let hca = rig.hca(Side::A);
    let prefix = 0xfec0_0000_0000_0042;
    change_port(hca, |info| {
        info.lid = Lid(0x40);
        info.lmc = 2;
        info.gid_prefix = prefix;
    });
    let events = events(rig, Side::A);
    let told = |what| events.contains(&AsyncEvent::Port(1, what));
    assert!(told(PortEvent::LidChange), "{events:?}");
    if rig.declared().has(Features::GID_CHANGE) {
        assert!(told(PortEvent::GidChange), "{events:?}");
    }
    let attr = hca.query_port(1).unwrap();
    assert_eq!(
        (attr.lid, attr.lmc, attr.gid_prefix),
        (Lid(0x40), 2, prefix)
    );
    assert_eq!(hca.query_gid(1, 0).unwrap().prefix(), prefix);
}

/// verbs 10.2: LID_CHANGE is not for the same values written again.
pub fn a_set_that_changes_nothing_is_no_lid_change<R: Rig>(rig: &R) {
    activate(rig);
    change_port(rig.hca(Side::A), |_| ());
    let events = events(rig, Side::A);
    let told = events.contains(&AsyncEvent::Port(1, PortEvent::LidChange));
    assert!(!told, "{events:?}");
}

/// verbs 2.3, T025.
pub fn a_node_description_that_is_set_is_what_the_fabric_reads<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let mut text = [0; 64];
    text[..5].copy_from_slice(b"rig a");
    let change = DeviceModify {
        node_description: Some(&text),
        sys_image_guid: None,
    };
    let answer = hca.modify_device(&change);
    if !rig.declared().has(Features::NODE_DESCRIPTION) {
        return is_unsupported(answer);
    }
    answer.unwrap();
    let read: NodeDescription = get(hca, 0);
    assert_eq!(read.as_str(), "rig a");
    if rig.declared().has(Features::SYSTEM_IMAGE) {
        return;
    }
    text[..5].copy_from_slice(b"other");
    let both = DeviceModify {
        node_description: Some(&text),
        sys_image_guid: Some(core_ib::Guid(1)),
    };
    is_unsupported(hca.modify_device(&both));
    let read: NodeDescription = get(hca, 0);
    assert_eq!(read.as_str(), "rig a", "unchanged");
}

/// verbs 2.3, T026.
pub fn a_capability_bit_of_a_port_is_set_and_cleared<R: Rig>(rig: &R) {
    let hca = rig.hca(Side::A);
    let before = info(hca).capability;
    assert!(!before.contains(Capability::SM));
    let (set_caps, clear_caps) = (Capability::SM.bits(), Capability::SM.bits());
    let set = PortModify {
        set_caps,
        ..PortModify::default()
    };
    let answer = hca.modify_port(1, &set);
    if !rig.declared().has(Features::PORT_CAPABILITIES) {
        return is_unsupported(answer);
    }
    answer.unwrap();
    assert_eq!(info(hca).capability, before | Capability::SM);
    let mask = hca.query_port(1).unwrap().capability_mask;
    assert_eq!(mask, (before | Capability::SM).bits());
    let clear = PortModify {
        clear_caps,
        ..PortModify::default()
    };
    hca.modify_port(1, &clear).unwrap();
    assert_eq!(info(hca).capability, before);
}

/// verbs 10.2, T154.
pub fn a_cable_that_is_pulled_is_told_once_and_so_is_its_return<R: Rig>(rig: &R) {
    activate(rig);
    let hca = rig.hca(Side::A);
    let count = |events: &[AsyncEvent], what| {
        let what = AsyncEvent::Port(1, what);
        events.iter().filter(|event| **event == what).count()
    };
    rig.plug(false);
    let gone = events(rig, Side::A);
    assert_eq!(count(&gone, PortEvent::Error), 1, "{gone:?}");
    assert_eq!(count(&gone, PortEvent::Active), 0, "{gone:?}");
    assert_eq!(hca.query_port(1).unwrap().state, 1);
    rig.plug(true);
    bring_up(rig);
    let back = events(rig, Side::A);
    assert_eq!(count(&back, PortEvent::Active), 1, "{back:?}");
    assert_eq!(count(&back, PortEvent::Error), 0, "{back:?}");
    assert!(hca.query_port(1).unwrap().is_active());
}

/// verbs 10.2: PORT_ERR is for a port that was Active.
pub fn a_cable_that_is_pulled_in_init_is_no_port_error<R: Rig>(rig: &R) {
    train(rig);
    events(rig, Side::A);
    rig.plug(false);
    let events = events(rig, Side::A);
    let told = events.contains(&AsyncEvent::Port(1, PortEvent::Error));
    assert!(!told, "{events:?}");
}

/// verbs 10.2, T155.
pub fn each_client_reregister_is_told<R: Rig>(rig: &R) {
    activate(rig);
    let hca = rig.hca(Side::A);
    let asked = AsyncEvent::Port(1, PortEvent::ClientReregister);
    for _ in 0..2 {
        change_port(hca, |info| info.client_reregister = true);
        let events = events(rig, Side::A);
        let times = events.iter().filter(|event| **event == asked).count();
        assert_eq!(times, 1, "{events:?}");
    }
    change_port(hca, |_| ());
    assert!(!events(rig, Side::A).contains(&asked));
}

/// verbs 10.2, T155: a gap on some HCAs, which they declare.
pub fn another_subnet_manager_is_told<R: Rig>(rig: &R) {
    activate(rig);
    let hca = rig.hca(Side::A);
    change_port(hca, |info| info.master_sm_lid = lid(Side::B));
    let events = events(rig, Side::A);
    let told = events.contains(&AsyncEvent::Port(1, PortEvent::SmChange));
    let declared = rig.declared().has(Features::SM_CHANGE);
    assert_eq!(told, declared, "{events:?}");
    assert_eq!(hca.query_port(1).unwrap().sm_lid, lid(Side::B));
}
