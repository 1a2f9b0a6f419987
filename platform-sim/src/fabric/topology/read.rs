//! The reader of topology files.
//!
//! A file that people print with `ibnetdiscover` or feed to `ibsim` is read; lines of no known kind are passed over with
//! one warning a kind and a count; a file that cannot mean a fabric is refused with the line and the reason. Grammar:
//! protocols 10.3.1.

use super::{
    CableSpec, NodeKind, NodeSpec, PortRef, PortSpec, Topology, speed_from_text, width_from_text,
};
use crate::machine::{LinkSpeed, LinkWidth};
use core_ib::{Guid, Lid};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where something stands in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The included file, as the line that includes it calls it; none: the text itself.
    pub file: Option<Arc<str>>,
    /// Line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        match &self.file {
            Some(file) => write!(f, " of {file:?}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The number of ports of a node is missing, or not 1 to 254.
    PortCount(String),
    /// A quote is missing around a name.
    Name,
    /// A second node of this name; where the first is.
    DuplicateNode(String, Place),
    /// A port number that the node does not have.
    NoSuchPort(String, u32),
    /// The number of a port is missing or no number.
    PortNumber,
    /// Not a hexadecimal GUID.
    GuidText(String),
    /// A port with two cables: this line and the one given contradict each other.
    TwoCables(String, u8, Place),
    /// A node or a port has the GUID that all zeros or all ones are, which is none.
    NoGuid(Guid),
    /// A second node with this GUID; where the first is.
    DuplicateGuid(Guid, Place),
    /// A second port with this GUID; where the node of the first is.
    DuplicatePortGuid(Guid, Place),
    /// A port plugged into itself.
    SelfLoop(String, u8),
    /// A second alias of this name.
    DuplicateAlias(String),
    /// The value of a setting or an option is not a number that it can have.
    Value(String),
    /// A file to be included could not be read, or files include each other too deeply.
    Include(String, String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortCount(found) => write!(f, "a node has 1 to 254 ports, not {found:?}"),
            Self::Name => f.write_str("a name in double quotes is missing"),
            Self::DuplicateNode(id, place) => {
                write!(f, "node {id:?} is already described on {place}")
            }
            Self::NoGuid(guid) => write!(f, "{guid} is the GUID of nobody"),
            Self::DuplicateGuid(guid, place) => {
                write!(f, "the node on {place} has the GUID {guid}, too")
            }
            Self::DuplicatePortGuid(guid, place) => {
                write!(f, "a port of the node on {place} has the GUID {guid}, too")
            }
            Self::NoSuchPort(id, port) => write!(f, "node {id:?} has no port {port}"),
            Self::PortNumber => f.write_str("a port number in square brackets is missing"),
            Self::GuidText(text) => write!(f, "{text:?} is no hexadecimal GUID"),
            Self::TwoCables(id, port, place) => write!(
                f,
                "port {port} of {id:?} is plugged in elsewhere by {place}"
            ),
            Self::SelfLoop(id, port) => write!(f, "port {port} of {id:?} is plugged into itself"),
            Self::DuplicateAlias(alias) => write!(f, "alias {alias:?} names two ports"),
            Self::Value(text) => write!(f, "{text:?} is not a value that can stand here"),
            Self::Include(file, why) => write!(f, "cannot include {file:?}: {why}"),
        }
    }
}

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Where.
    pub place: Place,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for ParseError {}

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// It cannot be read: what the system said.
    Read(String),
    /// It says what cannot be.
    Parse(ParseError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(why) => write!(f, "cannot be read: {why}"),
            Self::Parse(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<ParseError> for LoadError {
    fn from(error: ParseError) -> Self {
        Self::Parse(error)
    }
}

/// What was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// A line of no known kind.
    UnknownLine,
    /// A console command of `ibsim` (`do …`), which is not carried out.
    Command,
    /// A cable to a node that no line describes: the port is left unplugged.
    UnknownNode,
    /// A word behind a cable that is no option.
    UnknownOption,
    /// The two ends of a cable state different widths or speeds: the lesser counts.
    RateDiffers,
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownLine => "lines of no known kind, passed over",
            Self::Command => "console commands, not carried out",
            Self::UnknownNode => "cables to nodes that are not described, left unplugged",
            Self::UnknownOption => "words behind a cable that are no option, passed over",
            Self::RateDiffers => "cables whose ends state different rates, the lesser taken",
        })
    }
}

/// A kind of thing that was passed over, how often, and where first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What.
    pub kind: WarningKind,
    /// How often.
    pub count: usize,
    /// Where the first one is.
    pub place: Place,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, place } = self;
        write!(f, "{count} {kind} (first: {place})")
    }
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What it describes.
    pub topology: Topology,
    /// What was passed over, one entry a kind.
    pub warnings: Vec<Warning>,
}

/// First GUIDs of nodes that have none in the file, and how far apart they are.
const FIRST_CA_GUID: u64 = 0x10_0000;
const FIRST_SWITCH_GUID: u64 = 0x20_0000;
/// How deep files may include each other.
const MAX_INCLUDE: usize = 8;

/// A remote end as it stands on a port line, to be resolved when all nodes are known.
#[derive(Clone, Debug)]
struct Remote {
    id: String,
    port: Option<u32>,
    guid: Option<Guid>,
    width: Option<LinkWidth>,
    speed: Option<LinkSpeed>,
    place: Place,
}

/// Settings that apply to nodes that follow.
#[derive(Clone, Debug, Default)]
struct Settings {
    vendor_id: u32,
    device_id: u16,
    system_image_guid: Option<Guid>,
    node_guid: Option<Guid>,
    port0_guid: Option<Guid>,
    widths: Option<LinkWidth>,
    speed: Option<u8>,
    ext_speed: Option<u8>,
}

impl Settings {
    fn speeds(&self) -> Option<LinkSpeed> {
        join_speeds(self.speed, self.ext_speed)
    }
}

/// Speeds of both kinds as one set.
fn join_speeds(speed: Option<u8>, ext_speed: Option<u8>) -> Option<LinkSpeed> {
    match (speed, ext_speed) {
        (None, None) => None,
        (speed, ext) => Some(LinkSpeed(speed.unwrap_or(0) & 7 | ext.unwrap_or(0) << 4)),
    }
}

struct Reader<'r> {
    topology: Topology,
    by_id: BTreeMap<String, usize>,
    /// Where each node is described.
    places: Vec<Place>,
    aliases: BTreeMap<String, PortRef>,
    remotes: Vec<(PortRef, Remote)>,
    warnings: BTreeMap<WarningKind, Warning>,
    settings: Settings,
    next_ca_guid: u64,
    next_switch_guid: u64,
    prefix: String,
    /// The node whose port lines are being read.
    current: Option<usize>,
    /// Where the line being read stands.
    place: Place,
    include: &'r mut dyn FnMut(&str) -> Result<String, String>,
    depth: usize,
}

/// Text in double quotes at the front of `text`, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('"')?.split_once('"')
}

/// `[number]` at the front of `text`, and what follows it.
fn bracketed(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.trim_start().strip_prefix('[')?.split_once(']')?;
    Some((number.trim().parse().ok()?, rest))
}

/// Text in parentheses at the front of `text`, and what follows it.
fn parenthesised(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('(')?.split_once(')')
}

fn guid(text: &str) -> Result<Guid, Problem> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let number = u64::from_str_radix(digits, 16);
    number
        .map(Guid)
        .map_err(|_| Problem::GuidText(text.trim().to_owned()))
}

/// A number, decimal or with 0x.
fn number(text: &str) -> Result<u64, Problem> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| Problem::Value(text.to_owned()))
}

fn small_number(text: &str) -> Result<u8, Problem> {
    let value = number(text)?;
    u8::try_from(value).map_err(|_| Problem::Value(text.trim().to_owned()))
}

/// The value of `word value` among the words of a comment.
fn worded<'t>(comment: &'t str, word: &str) -> Option<&'t str> {
    let mut words = comment.split_whitespace();
    words.find(|found| *found == word)?;
    words.next()
}

/// LID and LMC as they stand in a comment.
fn lid_lmc(comment: &str) -> (Option<Lid>, u8) {
    let lid = worded(comment, "lid").and_then(|text| text.parse().ok());
    let lid = lid.filter(|&lid| Lid(lid).is_unicast()).map(Lid);
    let lmc = worded(comment, "lmc").and_then(|text| text.parse().ok());
    (lid, lmc.filter(|&lmc| lmc <= 7).unwrap_or(0))
}

/// Width and speed in the last word of a comment, `4xQDR`.
fn rate(comment: &str) -> (Option<LinkWidth>, Option<LinkSpeed>) {
    let last = comment.split_whitespace().next_back().unwrap_or("");
    let Some(at) = last.find('x') else {
        return (None, None);
    };
    let (width, speed) = last.split_at(at + 1);
    match (width_from_text(width), speed_from_text(speed)) {
        (Some(width), Some(speed)) => (Some(width), Some(speed)),
        _ => (None, None),
    }
}

/// The GUID in an id as `ibnetdiscover` makes them: `S-`, `H-` or `R-` and 16 digits.
fn guid_of_id(id: &str) -> Option<Guid> {
    let digits = ["S-", "H-", "R-"].iter().find_map(|p| id.strip_prefix(p))?;
    if digits.len() != 16 {
        return None;
    }
    u64::from_str_radix(digits, 16).ok().map(Guid)
}

impl Reader<'_> {
    fn warn(&mut self, kind: WarningKind, place: Place) {
        let warning = self.warnings.entry(kind).or_insert(Warning {
            kind,
            count: 0,
            place,
        });
        warning.count += 1;
    }

    fn text(&mut self, text: &str) -> Result<(), ParseError> {
        for (index, line) in text.lines().enumerate() {
            self.place.line = index + 1;
            let line = line.trim_end();
            self.one_line(line).map_err(|problem| ParseError {
                place: self.place.clone(),
                problem,
            })?;
        }
        Ok(())
    }

    fn one_line(&mut self, line: &str) -> Result<(), Problem> {
        if let Some(node) = self.current {
            if line.starts_with('[') {
                return self.port_line(node, line);
            }
            if line.starts_with('@') {
                return self.alias_line(node, line);
            }
            self.current = None;
        }
        if line.is_empty() || line.trim_start().starts_with('#') {
            return Ok(());
        }
        let (word, rest) = line.split_at(
            line.find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(line.len()),
        );
        match word {
            "Switch" => self.node_line(NodeKind::Switch, rest),
            "Hca" | "Ca" => self.node_line(NodeKind::Ca, rest),
            "Rt" => self.node_line(NodeKind::Router, rest),
            "do" => {
                self.warn(WarningKind::Command, self.place.clone());
                Ok(())
            }
            "include" => self.include_line(rest),
            "module" => {
                let text = rest.trim_start().strip_prefix('=');
                let (prefix, _) = text.and_then(quoted).ok_or(Problem::Name)?;
                self.prefix = prefix.to_owned();
                Ok(())
            }
            _ => self.setting(word, rest.trim_start()),
        }
    }

    fn setting(&mut self, name: &str, rest: &str) -> Result<(), Problem> {
        let (add, value) = match (rest.strip_prefix('='), rest.strip_prefix('+')) {
            (Some(value), _) => (false, value),
            (_, Some(value)) => (true, value),
            _ => {
                self.warn(WarningKind::UnknownLine, self.place.clone());
                return Ok(());
            }
        };
        // A setting ends where a comment begins; a GUID may be followed by another in parentheses.
        let value = value.split('#').next().unwrap_or("");
        let (value, second) = match value.split_once('(') {
            Some((value, second)) => (value, second.split_once(')').map(|(guid, _)| guid)),
            None => (value, None),
        };
        let wrong = || Problem::Value(value.trim().to_owned());
        match name {
            "vendid" => self.settings.vendor_id = (number(value)? & 0xff_ffff) as u32,
            "devid" => self.settings.device_id = number(value)? as u16,
            "sysimgguid" => self.settings.system_image_guid = Some(guid(value)?),
            "switchguid" if add => {
                self.next_switch_guid = self.next_switch_guid.wrapping_add(guid(value)?.0);
            }
            "caguid" | "hcaguids" | "rtguid" if add => {
                self.next_ca_guid = self.next_ca_guid.wrapping_add(guid(value)?.0);
            }
            "switchguid" | "caguid" | "hcaguids" | "rtguid" => {
                self.settings.node_guid = Some(guid(value)?);
                self.settings.port0_guid = second.map(guid).transpose()?;
            }
            "width" => self.settings.widths = Some(LinkWidth(small_number(value)?)),
            "speed" => self.settings.speed = Some(small_number(value)?),
            "extspeed" => {
                let code = small_number(value)?;
                self.settings.ext_speed = Some(Some(code).filter(|c| *c < 16).ok_or_else(wrong)?);
            }
            _ => self.warn(WarningKind::UnknownLine, self.place.clone()),
        }
        Ok(())
    }

    fn include_line(&mut self, rest: &str) -> Result<(), Problem> {
        let (file, _) = quoted(rest).ok_or(Problem::Name)?;
        let fail = |why: String| Problem::Include(file.to_owned(), why);
        if self.depth >= MAX_INCLUDE {
            return Err(fail("files include each other too deeply".to_owned()));
        }
        let text = (self.include)(file).map_err(fail)?;
        let inside = Place {
            file: Some(file.into()),
            line: 0,
        };
        let here = core::mem::replace(&mut self.place, inside);
        self.depth += 1;
        self.text(&text).map_err(|error| {
            let why = format!("line {}: {}", error.place.line, error.problem);
            self.place = here.clone();
            fail(why)
        })?;
        self.depth -= 1;
        self.place = here;
        self.current = None;
        Ok(())
    }

    fn node_line(&mut self, kind: NodeKind, rest: &str) -> Result<(), Problem> {
        let name_at = rest.find('"').ok_or(Problem::Name)?;
        let (count, rest) = rest.split_at(name_at);
        let count = count.trim();
        let ports = count.parse::<u8>().ok().filter(|&n| (1..255).contains(&n));
        let ports = ports.ok_or_else(|| Problem::PortCount(count.to_owned()))?;
        let (id, rest) = quoted(rest).ok_or(Problem::Name)?;
        let id = format!("{}{id}", self.prefix);
        if let Some(first) = self.by_id.get(&id).and_then(|node| self.places.get(*node)) {
            return Err(Problem::DuplicateNode(id, first.clone()));
        }
        let comment = rest.split_once('#').map_or("", |(_, comment)| comment);
        let (description, comment) = quoted(comment).unwrap_or((&id, comment));
        let description = description.to_owned();
        let settings = &mut self.settings;
        let counter = match kind {
            NodeKind::Switch => &mut self.next_switch_guid,
            _ => &mut self.next_ca_guid,
        };
        let guid = settings.node_guid.take().or_else(|| guid_of_id(&id));
        let guid = guid.unwrap_or_else(|| {
            let step = match kind {
                NodeKind::Switch => 1,
                _ => u64::from(ports) + 1,
            };
            let guid = Guid(*counter);
            *counter = counter.wrapping_add(step);
            guid
        });
        let mut node = NodeSpec::new(kind, id.clone(), guid, ports);
        node.description = description;
        node.vendor_id = core::mem::take(&mut settings.vendor_id);
        node.device_id = core::mem::take(&mut settings.device_id);
        node.system_image_guid = settings.system_image_guid.take();
        for port in &mut node.ports {
            port.widths = settings.widths;
            port.speeds = settings.speeds();
        }
        let port0_guid = settings.port0_guid.take();
        if kind == NodeKind::Switch
            && let Some(port0) = node.ports.first_mut()
        {
            node.enhanced_port0 = comment.contains("enhanced port 0");
            port0.guid = port0_guid;
            (port0.lid, port0.lmc) = lid_lmc(comment);
        }
        let index = self.topology.nodes.len();
        self.by_id.insert(id, index);
        self.places.push(self.place.clone());
        self.topology.nodes.push(node);
        self.current = Some(index);
        Ok(())
    }

    /// The port spec of `[number]`, if the node has such a port.
    fn port(&mut self, node: usize, port: u32) -> Result<(u8, &mut PortSpec), Problem> {
        let spec = self.topology.nodes.get_mut(node);
        let spec = spec.ok_or(Problem::PortNumber)?;
        let id = spec.id.clone();
        let number = u8::try_from(port).ok().filter(|&number| number > 0);
        let found = number.and_then(|n| Some((n, spec.ports.get_mut(usize::from(n))?)));
        found.ok_or(Problem::NoSuchPort(id, port))
    }

    fn port_line(&mut self, node: usize, line: &str) -> Result<(), Problem> {
        let (text, comment) = match line.split_once('#') {
            // A '#' in a quoted id is no comment.
            Some((text, _)) if text.matches('"').count() % 2 == 1 => {
                let (_, after) = line.split_once('"').unwrap_or((line, ""));
                let (_, tail) = after.split_once('"').unwrap_or((after, ""));
                let at = tail.find('#').map(|at| line.len() - tail.len() + at);
                match at {
                    Some(at) => (&line[..at], &line[at + 1..]),
                    None => (line, ""),
                }
            }
            Some((text, comment)) => (text, comment),
            None => (line, ""),
        };
        let (port, rest) = bracketed(text).ok_or(Problem::PortNumber)?;
        let (own_guid, rest) = match parenthesised(rest) {
            Some((text, rest)) => (Some(guid(text)?), rest),
            None => (None, rest),
        };
        let remote = quoted(rest);
        let rest = remote.map_or(rest, |(_, rest)| rest);
        let (remote_port, rest) = match bracketed(rest) {
            Some((port, rest)) => (Some(port), rest),
            None => (None, rest),
        };
        let (remote_guid, rest) = match parenthesised(rest) {
            Some((text, rest)) => (Some(guid(text)?), rest),
            None => (None, rest),
        };
        let (mut speed, mut ext_speed, mut widths) = (None, None, None);
        for option in rest.split_whitespace() {
            match option.split_once('=') {
                Some(("w", value)) => widths = Some(LinkWidth(small_number(value)?)),
                Some(("s", value)) => speed = Some(small_number(value)?),
                Some(("e", value)) => ext_speed = Some(small_number(value)?),
                _ => self.warn(WarningKind::UnknownOption, self.place.clone()),
            }
        }
        let is_switch = self.topology.nodes.get(node).map(|n| n.kind) == Some(NodeKind::Switch);
        let place = self.place.clone();
        let (number, spec) = self.port(node, port)?;
        spec.guid = own_guid.or(spec.guid);
        spec.widths = widths.or(spec.widths);
        spec.speeds = join_speeds(speed, ext_speed).or(spec.speeds);
        if !is_switch {
            let own = comment.split('"').next().unwrap_or("");
            let (lid, lmc) = lid_lmc(own);
            (spec.lid, spec.lmc) = (lid.or(spec.lid), lmc);
        }
        let Some((id, _)) = remote else {
            return Ok(());
        };
        let (width, speed) = rate(comment);
        let remote = Remote {
            id: id.to_owned(),
            port: remote_port,
            guid: remote_guid,
            width,
            speed,
            place,
        };
        self.remotes.push((PortRef::new(node, number), remote));
        Ok(())
    }

    fn alias_line(&mut self, node: usize, line: &str) -> Result<(), Problem> {
        let (port, rest) = line
            .strip_prefix('@')
            .and_then(bracketed)
            .ok_or(Problem::PortNumber)?;
        let (alias, _) = quoted(rest).ok_or(Problem::Name)?;
        let (number, _) = self.port(node, port)?;
        let alias = alias.trim_start_matches('@').to_owned();
        let port = PortRef::new(node, number);
        if self.aliases.insert(alias.clone(), port).is_some() {
            return Err(Problem::DuplicateAlias(alias));
        }
        Ok(())
    }

    /// The port that a remote end means; none if nobody described it.
    fn resolve(&self, remote: &Remote) -> Result<Option<PortRef>, Problem> {
        if let Some(alias) = remote.id.strip_prefix('@') {
            return Ok(self.aliases.get(alias).copied());
        }
        let prefixed = self.by_id.get(&format!("{}{}", self.prefix, remote.id));
        let Some(node) = prefixed.or_else(|| self.by_id.get(&remote.id)) else {
            return Ok(None);
        };
        let port = remote.port.unwrap_or(1);
        let has = self.topology.nodes.get(*node).map_or(0, |n| n.port_count());
        match u8::try_from(port) {
            Ok(number) if number >= 1 && number <= has => Ok(Some(PortRef::new(*node, number))),
            _ => Err(Problem::NoSuchPort(remote.id.clone(), port)),
        }
    }

    fn name(&self, port: PortRef) -> String {
        let node = self.topology.nodes.get(port.node);
        node.map(|node| node.id.clone()).unwrap_or_default()
    }

    /// Plugs in all cables, now that all nodes are known.
    fn connect(&mut self) -> Result<(), ParseError> {
        let mut plugged: BTreeMap<PortRef, (usize, Place)> = BTreeMap::new();
        for (near, remote) in core::mem::take(&mut self.remotes) {
            let fail = |problem| ParseError {
                place: remote.place.clone(),
                problem,
            };
            let Some(far) = self.resolve(&remote).map_err(fail)? else {
                self.warn(WarningKind::UnknownNode, remote.place);
                continue;
            };
            if far == near {
                return Err(fail(Problem::SelfLoop(self.name(near), near.port)));
            }
            let spec = self.topology.nodes.get_mut(far.node);
            if let Some(spec) = spec.and_then(|node| node.ports.get_mut(usize::from(far.port))) {
                spec.guid = spec.guid.or(remote.guid);
            }
            match (plugged.get(&near).cloned(), plugged.get(&far).cloned()) {
                (None, None) => {
                    let cable = self.topology.cables.len();
                    plugged.insert(near, (cable, remote.place.clone()));
                    plugged.insert(far, (cable, remote.place));
                    self.topology.cables.push(CableSpec {
                        ends: [near, far],
                        width: remote.width,
                        speed: remote.speed,
                    });
                }
                (Some((a, _)), Some((b, _))) if a == b => self.second_end(a, &remote),
                (Some((_, other)), _) => {
                    return Err(fail(Problem::TwoCables(self.name(near), near.port, other)));
                }
                (None, Some((_, other))) => {
                    return Err(fail(Problem::TwoCables(self.name(far), far.port, other)));
                }
            }
        }
        Ok(())
    }

    /// A subnet manager knows nodes and ports by their GUIDs, which nobody else has.
    fn guids(&self) -> Result<(), ParseError> {
        let cables = self.topology.cables.iter();
        let cabled: BTreeSet<PortRef> = cables.flat_map(|cable| cable.ends).collect();
        let mut nodes: BTreeMap<Guid, &Place> = BTreeMap::new();
        let mut ports: BTreeMap<Guid, &Place> = BTreeMap::new();
        for ((index, node), place) in self.topology.nodes.iter().enumerate().zip(&self.places) {
            let fail = |problem| ParseError {
                place: place.clone(),
                problem,
            };
            let is_one = |guid: Guid| match guid {
                Guid(0 | u64::MAX) => Err(fail(Problem::NoGuid(guid))),
                _ => Ok(()),
            };
            is_one(node.guid)?;
            if let Some(first) = nodes.insert(node.guid, place) {
                return Err(fail(Problem::DuplicateGuid(node.guid, first.clone())));
            }
            // Of a switch, port 0 alone; of others, those that anybody can see.
            let numbers = match node.kind {
                NodeKind::Switch => 0..=0,
                _ => 1..=node.port_count(),
            };
            for port in
                numbers.filter(|port| *port == 0 || cabled.contains(&PortRef::new(index, *port)))
            {
                let guid = node.port_guid(port);
                is_one(guid)?;
                if let Some(first) = ports.insert(guid, place) {
                    return Err(fail(Problem::DuplicatePortGuid(guid, first.clone())));
                }
            }
        }
        Ok(())
    }

    /// The second line that names a cable: it may state a rate that the first did not, or another.
    fn second_end(&mut self, cable: usize, remote: &Remote) {
        let Some(cable) = self.topology.cables.get_mut(cable) else {
            return;
        };
        let lesser = |first: Option<u8>, second: Option<u8>| match (first, second) {
            (Some(first), Some(second)) => (Some(first.min(second)), first != second),
            (first, second) => (first.or(second), false),
        };
        let lanes = |width: LinkWidth| width.lanes() as u8;
        let (_, width_differs) = lesser(cable.width.map(lanes), remote.width.map(lanes));
        if cable
            .width
            .is_none_or(|w| remote.width.is_some_and(|r| r.lanes() < w.lanes()))
        {
            cable.width = remote.width.or(cable.width);
        }
        let (speed, speed_differs) = lesser(cable.speed.map(|s| s.0), remote.speed.map(|s| s.0));
        cable.speed = speed.map(LinkSpeed);
        if width_differs || speed_differs {
            self.warn(WarningKind::RateDiffers, remote.place.clone());
        }
    }
}

impl Topology {
    /// Reads a text that includes no other file.
    pub fn parse(text: &str) -> Result<Parsed, ParseError> {
        let mut refuse = |_: &str| Err("this text stands alone; load it as a file".to_owned());
        Self::parse_with(text, &mut refuse)
    }

    /// Reads a text; `include` gives the text of an included file, or says why not.
    pub fn parse_with(
        text: &str,
        include: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Parsed, ParseError> {
        let mut reader = Reader {
            topology: Topology::default(),
            by_id: BTreeMap::new(),
            places: Vec::new(),
            aliases: BTreeMap::new(),
            remotes: Vec::new(),
            warnings: BTreeMap::new(),
            settings: Settings::default(),
            next_ca_guid: FIRST_CA_GUID,
            next_switch_guid: FIRST_SWITCH_GUID,
            prefix: String::new(),
            current: None,
            place: Place {
                file: None,
                line: 0,
            },
            include,
            depth: 0,
        };
        reader.text(text)?;
        reader.connect()?;
        reader.guids()?;
        Ok(Parsed {
            topology: reader.topology,
            warnings: reader.warnings.into_values().collect(),
        })
    }

    /// Reads a file, and those that it includes, whose names count from where it lies. Text that is no UTF-8 is read
    /// with replacement characters.
    pub fn load(path: &Path) -> Result<Parsed, LoadError> {
        let read = |path: &Path| match std::fs::read(path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(error.to_string()),
        };
        let text = read(path).map_err(LoadError::Read)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Self::parse_with(&text, &mut |name| {
            read(&folder.join(name))
        })?)
    }
}
