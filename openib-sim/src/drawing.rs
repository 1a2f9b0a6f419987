//! A picture of the fabric: nodes with their LIDs, cables with their states, routes of the switches.

use crate::sim::Simulation;
use core_ib::Lid;
use platform_sim::fabric::Fabric;
use platform_sim::fabric::topology::{NodeKind, PortRef};
use std::collections::BTreeMap;
use svg::Document;
use svg::node::element::{Line, Rectangle, Style, Text, Title};

const WIDTH: f64 = 170.0;
const HEIGHT: f64 = 58.0;
const GAP_X: f64 = 30.0;
const GAP_Y: f64 = 110.0;
const MARGIN: f64 = 40.0;
/// With more LIDs than this the routes are in the tool tips alone.
const ROUTES_SHOWN: usize = 8;

/// What is drawn of one node.
struct Seen {
    name: String,
    is_switch: bool,
    lid: Lid,
    /// Routes: LID, port.
    routes: Vec<(Lid, u8)>,
}

/// How far each node is from the nearest host, in cables: the rows of the picture from the bottom up.
fn levels(simulation: &Simulation) -> Vec<usize> {
    let topology = &simulation.topology;
    let mut levels: Vec<Option<usize>> = topology
        .nodes
        .iter()
        .map(|spec| (spec.kind != NodeKind::Switch).then_some(0))
        .collect();
    // As many rounds as nodes are more than enough.
    for _ in 0..topology.nodes.len() {
        for cable in &topology.cables {
            let [a, b] = cable.ends.map(|end| end.node);
            for (from, to) in [(a, b), (b, a)] {
                let level = levels.get(from).copied().flatten();
                if let (Some(level), Some(place)) = (level, levels.get_mut(to)) {
                    let better = place.is_none_or(|known| known > level + 1);
                    if better {
                        *place = Some(level + 1);
                    }
                }
            }
        }
    }
    levels.into_iter().map(|level| level.unwrap_or(1)).collect()
}

fn see(simulation: &mut Simulation) -> Vec<Seen> {
    let lids: BTreeMap<usize, Lid> = simulation
        .hosts
        .iter()
        .map(|host| (host.node, host.remote.look(|status| status.port.lid)))
        .collect();
    let known: Vec<Lid> = lids
        .values()
        .copied()
        .filter(|lid| lid.is_unicast())
        .collect();
    let specs = simulation.topology.nodes.clone();
    let seen = simulation.world.with_wire(|fabric: &mut Fabric, _| {
        let nodes = specs.iter().enumerate().map(|(index, spec)| {
            let state = fabric.node(index);
            let inside = state
                .and_then(|state| state.port(if spec.kind == NodeKind::Switch { 0 } else { 1 }));
            let lid = lids
                .get(&index)
                .copied()
                .or(inside.map(|port| port.info.lid))
                .unwrap_or(Lid::NONE);
            let switch = state.and_then(|state| state.switch.as_ref());
            let routes = switch.map_or_else(Vec::new, |switch| {
                known
                    .iter()
                    .filter_map(|lid| Some((*lid, switch.unicast_port(*lid)?)))
                    .collect()
            });
            let name = if spec.description.is_empty() {
                &spec.id
            } else {
                &spec.description
            };
            Seen {
                name: name.clone(),
                is_switch: spec.kind == NodeKind::Switch,
                lid,
                routes,
            }
        });
        nodes.collect()
    });
    seen.unwrap_or_default()
}

/// States of a cable's ends (1 Down to 4 Active), as far as switches know, and whether the link is trained.
fn cable_state(simulation: &mut Simulation, ends: [PortRef; 2]) -> (u8, bool) {
    let hosts: BTreeMap<usize, u8> = simulation
        .hosts
        .iter()
        .map(|host| (host.node, host.remote.look(|status| status.port.state)))
        .collect();
    let state = simulation.world.with_wire(|fabric: &mut Fabric, _| {
        let states = ends.map(|end| {
            let node = fabric.node(end.node);
            let port = node.and_then(|node| node.port(end.port));
            let inside = port.map(|port| port.info.state.0);
            inside.or(hosts.get(&end.node).copied()).unwrap_or(1)
        });
        let [a, b] = states;
        (a.min(b), fabric.link(ends[0]).is_some())
    });
    state.unwrap_or((1, false))
}

/// Draws the fabric as it is now, as SVG.
pub fn draw(simulation: &mut Simulation) -> String {
    let levels = levels(simulation);
    let seen = see(simulation);
    let rows = levels.iter().copied().max().unwrap_or(0) + 1;
    let mut row_lengths = vec![0_usize; rows];
    let mut columns = Vec::new();
    for level in &levels {
        let length = row_lengths.get_mut(*level);
        columns.push(length.as_ref().map_or(0, |length| **length));
        if let Some(length) = length {
            *length += 1;
        }
    }
    let widest = row_lengths.iter().copied().max().unwrap_or(1).max(1);
    let full = widest as f64 * (WIDTH + GAP_X) - GAP_X;
    let place = |node: usize| {
        let level = levels.get(node).copied().unwrap_or(0);
        let length = row_lengths.get(level).copied().unwrap_or(1).max(1);
        let column = columns.get(node).copied().unwrap_or(0);
        let step = full / length as f64;
        let x = MARGIN + step * (column as f64 + 0.5) - WIDTH / 2.0;
        let y = MARGIN + (rows - 1 - level) as f64 * (HEIGHT + GAP_Y);
        (x, y)
    };
    let (width, height) = (
        full + 2.0 * MARGIN,
        rows as f64 * (HEIGHT + GAP_Y) - GAP_Y + 2.0 * MARGIN,
    );
    let mut document = Document::new()
        .set("viewBox", (0, 0, width.ceil() as i64, height.ceil() as i64))
        .set("width", width.ceil())
        .set("height", height.ceil())
        .add(Style::new(
            "text{font-family:sans-serif;font-size:12px;fill:#223}.small{font-size:10px;fill:#556}.port{font-size:9px;fill:#556}",
        ))
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"));
    for cable in simulation.topology.cables.clone() {
        let (state, trained) = cable_state(simulation, cable.ends);
        let colour = match (trained, state) {
            (false, _) | (_, 0 | 1) => "#c33",
            (_, 4) => "#2a7",
            _ => "#d90",
        };
        let [a, b] = cable.ends;
        let centre = |end: PortRef| {
            let (x, y) = place(end.node);
            (x + WIDTH / 2.0, y + HEIGHT / 2.0)
        };
        let ((x1, y1), (x2, y2)) = (centre(a), centre(b));
        let title = format!("port {} to port {}, state {state}", a.port, b.port);
        let line = Line::new()
            .set("x1", x1)
            .set("y1", y1)
            .set("x2", x2)
            .set("y2", y2)
            .set("stroke", colour)
            .set("stroke-width", 2)
            .add(Title::new(title));
        document = document.add(line);
        for ((fx, fy), (tx, ty), port) in
            [((x1, y1), (x2, y2), a.port), ((x2, y2), (x1, y1), b.port)]
        {
            let length = (tx - fx).hypot(ty - fy).max(1.0);
            let at = (HEIGHT * 0.75 / length).min(0.45);
            let text = Text::new(port.to_string())
                .set("x", fx + (tx - fx) * at + 4.0)
                .set("y", fy + (ty - fy) * at)
                .set("class", "port");
            document = document.add(text);
        }
    }
    for (index, node) in seen.iter().enumerate() {
        let (x, y) = place(index);
        let fill = if node.is_switch { "#dde6f5" } else { "#e6f5dd" };
        let routes: Vec<String> = node
            .routes
            .iter()
            .map(|(lid, port)| format!("{lid} by {port}"))
            .collect();
        let kind = if node.is_switch {
            "switch"
        } else {
            "InfiniHost"
        };
        let title = format!(
            "{} ({kind})\nLID {}\n{}",
            node.name,
            node.lid,
            routes.join("\n")
        );
        let frame = Rectangle::new()
            .set("x", x)
            .set("y", y)
            .set("width", WIDTH)
            .set("height", HEIGHT)
            .set("rx", 6)
            .set("fill", fill)
            .set("stroke", "#567")
            .add(Title::new(title));
        let name: String = node.name.chars().take(24).collect();
        let name = Text::new(name).set("x", x + 8.0).set("y", y + 18.0);
        let lid = Text::new(format!("{kind}, LID {}", node.lid))
            .set("x", x + 8.0)
            .set("y", y + 34.0)
            .set("class", "small");
        document = document.add(frame).add(name).add(lid);
        if !routes.is_empty() && routes.len() <= ROUTES_SHOWN {
            let text = Text::new(routes.join(", "))
                .set("x", x + 8.0)
                .set("y", y + 49.0)
                .set("class", "small");
            document = document.add(text);
        }
    }
    document.to_string()
}
