//! Address handles, and how datagrams find their way: verbs 9.1, 9.3.

use super::tools::{
    GRH, QUIET, Station, change_port, is_invalid_attr, is_invalid_handle, is_invalid_port,
    is_no_resources, is_unsupported, lid,
};
use super::{Features, Rig, Side};
use core_ib::platform::Platform as _;
use core_ib::verbs::{AhAttr, Device, GlobalRoute, WcFlags, WorkCompletion};
use core_ib::wire::FlowLabel;
use core_ib::wire::packet::{Grh, GrhView, HeaderView as _};
use core_ib::{Gid, Lid, Rate, Sl};

/// The route to port 1 of the other side, from GID 0.
fn route<R: Rig>(station: &Station<'_, R>, to: Side) -> GlobalRoute {
    GlobalRoute {
        dgid: station.rig.hca(to).query_gid(1, 0).unwrap(),
        sgid_index: 0,
        flow_label: 0x12345,
        hop_limit: 7,
        traffic_class: 0x2a,
    }
}

/// verbs 9.1, T141.
pub fn an_address_that_cannot_be_is_refused<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let ports = hca.query_device().port_count;
    let gids = hca.query_port(1).unwrap().gid_table_len;
    let good = station.address_of(Side::B);
    let with = |change: &dyn Fn(&mut AhAttr)| {
        let mut attr = good;
        change(&mut attr);
        hca.create_ah(station.pd, &attr)
    };
    for port in [0, ports + 1] {
        is_invalid_port(with(&|attr| attr.port = port));
    }
    let global = |sgid_index| GlobalRoute {
        dgid: Gid([0x11; 16]),
        sgid_index,
        ..GlobalRoute::default()
    };
    with(&|attr| attr.grh = Some(global(0))).unwrap();
    is_invalid_attr(with(&|attr| attr.grh = Some(global(gids as u8))));
    is_invalid_attr(with(&|attr| attr.dlid = Lid::NONE));
    is_invalid_attr(with(&|attr| attr.dlid = Lid(0xc000)));
    with(&|attr| attr.dlid = Lid::PERMISSIVE).unwrap();
    with(&|attr| (attr.dlid, attr.grh) = (Lid(0xc000), Some(global(0)))).unwrap();
    is_invalid_attr(with(&|attr| attr.static_rate = Rate(1)));
    for rate in [
        Rate::PORT,
        Rate::GBPS_2_5,
        Rate::GBPS_10,
        Rate::GBPS_30,
        Rate::GBPS_120,
    ] {
        with(&|attr| attr.static_rate = rate).unwrap();
    }
    let gone = hca.alloc_pd().unwrap();
    hca.dealloc_pd(gone).unwrap();
    is_invalid_handle(hca.create_ah(gone, &good));
}

/// verbs 9.1: an entry of the GID table that is zero is no source.
pub fn an_empty_gid_entry_is_no_source<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let gids = hca.query_port(1).unwrap().gid_table_len;
    for index in 0..gids {
        let guid = hca.query_gid(1, index).unwrap().guid();
        let attr = AhAttr {
            grh: Some(GlobalRoute {
                dgid: Gid([0x11; 16]),
                sgid_index: index as u8,
                ..GlobalRoute::default()
            }),
            ..station.address_of(Side::B)
        };
        let answer = hca.create_ah(station.pd, &attr);
        if guid.0 == 0 {
            is_invalid_attr(answer);
        } else {
            hca.destroy_ah(answer.unwrap()).unwrap();
        }
    }
}

/// verbs 9.1, T141.
pub fn what_was_given_is_what_is_asked_back<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let attr = AhAttr {
        port: 1,
        dlid: Lid(0x1234),
        sl: Sl::new(11),
        src_path_bits: 0,
        static_rate: Rate::PORT,
        grh: Some(route(&station, Side::B)),
    };
    for attr in [attr, AhAttr { grh: None, ..attr }] {
        let ah = hca.create_ah(station.pd, &attr).unwrap();
        assert_eq!(hca.query_ah(ah), Ok(attr));
        hca.destroy_ah(ah).unwrap();
        is_invalid_handle(hca.query_ah(ah));
        is_invalid_handle(hca.destroy_ah(ah));
    }
}

/// verbs 2.1.
pub fn after_the_last_address_handle_there_is_none_until_one_is_gone<R: Rig>(rig: &R) {
    let station = Station::new(rig, Side::A);
    let hca = station.hca();
    let attr = station.address_of(Side::B);
    let most = hca.query_device().max_ah;
    let handles: Vec<_> = (0..most)
        .map(|_| hca.create_ah(station.pd, &attr).unwrap())
        .collect();
    is_no_resources(hca.create_ah(station.pd, &attr));
    hca.destroy_ah(handles[0]).unwrap();
    hca.create_ah(station.pd, &attr).unwrap();
}

/// verbs 9.1.
pub fn an_address_handle_that_is_modified_leads_elsewhere<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, near, far) = (a.ud(), a.ud(), b.ud());
    let ah = a.ah(Side::A);
    let to_b = a.address_of(Side::B);
    let answer = a.hca().modify_ah(ah, &to_b);
    if !rig.declared().has(Features::MODIFY_AH) {
        is_unsupported(answer);
        assert_eq!(a.hca().query_ah(ah), Ok(a.address_of(Side::A)), "unchanged");
        return;
    }
    answer.unwrap();
    assert_eq!(a.hca().query_ah(ah), Ok(to_b));
    a.receive(near.handle, 1, &[a.buffer.sge(0, 64)]);
    b.receive(far.handle, 2, &[b.buffer.sge(0, 64)]);
    a.send(qp.handle, 3, a.datagram(ah, &far), &[]);
    b.success(2);
    a.success(3);
}

/// The answer to a datagram: an address made from its completion and GRH. verbs 9.1.
fn answer_to<R: Rig>(station: &Station<'_, R>, wc: &WorkCompletion, at: usize) -> AhAttr {
    let grh = wc.flags.contains(WcFlags::GRH).then(|| {
        let bytes = station.buffer.bytes(at, GRH as usize);
        let (view, _) = GrhView::split(&bytes).unwrap();
        let grh = Grh::try_from(view).unwrap();
        let gids = station.hca().query_port(1).unwrap().gid_table_len;
        let is_ours = |index: &u16| station.hca().query_gid(1, *index) == Ok(grh.dgid);
        GlobalRoute {
            dgid: grh.sgid,
            sgid_index: (0..gids).find(is_ours).unwrap() as u8,
            flow_label: grh.flow_label.get(),
            hop_limit: 0xff,
            traffic_class: grh.traffic_class,
        }
    });
    AhAttr {
        port: 1,
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: Rate::PORT,
        grh,
    }
}

/// verbs 5.3, 9.1, 9.3, T142.
pub fn an_answer_made_from_the_completion_reaches_the_sender<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    for grh in [None, Some(route(&a, Side::B))] {
        let to = AhAttr {
            grh,
            ..a.address_of(Side::B)
        };
        let ah = a.hca().create_ah(a.pd, &to).unwrap();
        a.receive(qp.handle, 10, &[a.buffer.sge(4096, 256)]);
        b.receive(peer.handle, 1, &[b.buffer.sge(0, 256)]);
        a.send(qp.handle, 2, a.datagram(ah, &peer), &[a.buffer.sge(0, 16)]);
        a.success(2);
        let wc = b.success(1);
        assert_eq!(wc.flags.contains(WcFlags::GRH), grh.is_some());
        assert_eq!(wc.byte_len, 16 + GRH);
        let back = answer_to(&b, &wc, 0);
        if let (Some(there), Some(back)) = (grh, back.grh) {
            assert_eq!(back.dgid, a.hca().query_gid(1, 0).unwrap());
            assert_eq!(
                (back.flow_label, back.traffic_class),
                (there.flow_label, there.traffic_class)
            );
            let bytes = b.buffer.bytes(0, GRH as usize);
            let grh = Grh::try_from(GrhView::split(&bytes).unwrap().0).unwrap();
            assert_eq!((grh.dgid, grh.hop_limit), (there.dgid, there.hop_limit));
            assert_eq!(grh.flow_label, FlowLabel::new(there.flow_label));
        }
        let ah = b.hca().create_ah(b.pd, &back).unwrap();
        b.send(
            peer.handle,
            3,
            b.datagram(ah, &qp),
            &[b.buffer.sge(1024, 8)],
        );
        b.success(3);
        assert_eq!(a.success(10).src_qp, peer.qpn);
    }
}

/// verbs 2.2, 9.3, T143.
pub fn a_port_hears_itself_at_each_of_its_lids<R: Rig>(rig: &R) {
    let [a, _b] = Station::pair(rig);
    change_port(a.hca(), |info| info.lmc = 2);
    let (qp, peer) = (a.ud(), a.ud());
    for path in 0..4_u8 {
        for source in [0, 3_u8] {
            let attr = AhAttr {
                dlid: Lid(lid(Side::A).0 + u16::from(path)),
                src_path_bits: source,
                ..a.address_of(Side::A)
            };
            let ah = a.hca().create_ah(a.pd, &attr).unwrap();
            a.receive(peer.handle, 1, &[a.buffer.sge(0, 256)]);
            a.send(qp.handle, 2, a.datagram(ah, &peer), &[]);
            let mut both = a.completions(2);
            both.sort_by_key(|wc| wc.wr_id);
            assert_eq!((both[0].wr_id, both[1].wr_id), (1, 2));
            assert_eq!(both[0].dlid_path_bits, path);
            assert_eq!(both[0].slid, Lid(lid(Side::A).0 + u16::from(source)));
        }
    }
    a.stays_quiet();
}

/// verbs 3.5, 5.3, 9.3: over the cable.
pub fn path_bits_and_service_level_of_a_datagram_are_told<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    change_port(a.hca(), |info| info.lmc = 1);
    change_port(b.hca(), |info| info.lmc = 3);
    let (qp, peer) = (a.ud(), b.ud());
    let attr = AhAttr {
        dlid: Lid(lid(Side::B).0 + 5),
        src_path_bits: 1,
        ..a.address_of(Side::B)
    };
    let ah = a.hca().create_ah(a.pd, &attr).unwrap();
    b.receive(peer.handle, 1, &[b.buffer.sge(0, 256)]);
    a.send(qp.handle, 2, a.datagram(ah, &peer), &[]);
    let wc = b.success(1);
    assert_eq!((wc.slid, wc.dlid_path_bits), (Lid(lid(Side::A).0 + 1), 5));
}

/// verbs 9.3: a datagram for a LID that nobody has, or a QP that is not, is lost, and its send succeeds.
pub fn a_datagram_for_nobody_is_lost_and_sent<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    b.receive(peer.handle, 1, &[b.buffer.sge(0, 256)]);
    let nobody = core_ib::verbs::QpInfo {
        qpn: core_ib::Qpn::new(peer.qpn.get() ^ 0x55_0000),
        ..peer
    };
    a.send(qp.handle, 2, a.to(&nobody), &[]);
    a.success(2);
    let attr = AhAttr {
        dlid: Lid(0x0777),
        ..a.address_of(Side::B)
    };
    let ah = a.hca().create_ah(a.pd, &attr).unwrap();
    a.send(qp.handle, 3, a.datagram(ah, &peer), &[]);
    a.success(3);
    a.machine().sleep(QUIET);
    b.stays_quiet();
}

/// verbs 6.1: a port that is not Active sends nothing, and nothing hangs.
pub fn what_is_sent_without_a_cable_completes<R: Rig>(rig: &R) {
    let [a, b] = Station::pair(rig);
    let (qp, peer) = (a.ud(), b.ud());
    let op = a.to(&peer);
    rig.plug(false);
    b.receive(peer.handle, 1, &[b.buffer.sge(0, 256)]);
    a.send(qp.handle, 2, op, &[]);
    a.success(2);
    b.stays_quiet();
}
