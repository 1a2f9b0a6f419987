//! How interrupts of the device reach a client: an event file for the pin, and one for each message.
//!
//! The pin is a line: while it is up and not masked, its file is signalled once and the line masks itself; the client
//! lifts the mask when its guest has looked at the device, and a line that is still up signals again.

use super::{Command, Refusal};
use core::ops::Range;
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;

/// Kinds of interrupts of a PCI device, by the protocol's numbers.
pub(super) const INTX: u32 = 0;
pub(super) const MSIX: u32 = 2;
/// Errors that the device reports of itself; a client may want a file for it, though nothing ever comes.
pub(super) const ERR: u32 = 3;
/// How many kinds there are: pin, MSI, MSI-X, error, request to let the device go.
pub(super) const KINDS: u32 = 5;

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const DATA: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
const MASK: u32 = 8;
const UNMASK: u32 = 16;
const TRIGGER: u32 = 32;
const ACTION: u32 = MASK | UNMASK | TRIGGER;

/// What can be done with a kind of interrupt: 1 event files, 2 masking, 4 it masks itself.
pub(super) const fn flags(index: u32) -> u32 {
    match index {
        INTX => 7,
        MSIX | ERR => 1,
        _ => 0,
    }
}

/// A file that is written to in order to wake somebody.
#[derive(Debug)]
struct Event(OwnedFd);

impl Event {
    /// Takes a file of a client, which must not be able to stop us: it is made non-blocking.
    fn new(file: OwnedFd) -> rustix::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        if !flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self(file))
    }

    fn signal(&self) {
        // A counter that is full wakes its reader all the same; a file that is no event file is its owner's loss.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[derive(Debug, Default)]
struct Line {
    event: Option<Event>,
    up: bool,
    masked: bool,
}

impl Line {
    fn evaluate(&mut self) {
        if let Some(event) = &self.event
            && self.up
            && !self.masked
        {
            self.masked = true;
            event.signal();
        }
    }
}

/// The files of one client.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    line: Line,
    messages: Vec<Option<Event>>,
    error: Option<Event>,
    sent: u64,
}

impl Interrupts {
    /// For a device with so many messages.
    pub(super) fn new(messages: u16) -> Self {
        let mut this = Self::default();
        this.messages.resize_with(usize::from(messages), || None);
        this
    }

    /// Drives the pin.
    pub(super) fn set_line(&mut self, up: bool) {
        self.line.up = up;
        let masked = self.line.masked;
        self.line.evaluate();
        self.sent += u64::from(self.line.masked && !masked);
    }

    /// Message `vector`; lost if nobody wants it.
    pub(super) fn message(&mut self, vector: u32) {
        if let Some(Some(event)) = self.messages.get(vector as usize) {
            event.signal();
            self.sent += 1;
        }
    }

    /// Does the client want message `vector`?
    pub(super) fn wanted(&self, vector: u16) -> bool {
        matches!(self.messages.get(usize::from(vector)), Some(Some(_)))
    }

    /// Interrupts that went out.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Forgets all files. The line stays as it is.
    pub(super) fn clear(&mut self) {
        let up = self.line.up;
        self.line = Line::default();
        self.line.up = up;
        self.messages.iter_mut().for_each(|message| *message = None);
        self.error = None;
    }

    /// Carries out a setting. Gives the messages that it was about.
    pub(super) fn set(
        &mut self,
        flags: u32,
        (index, start, count): (u32, u32, u32),
        data: &[u8],
        files: &mut Vec<OwnedFd>,
        available: u32,
    ) -> Result<Range<u16>, Refusal> {
        let command = Command::SET_IRQS;
        let wrong = Refusal::Flags { command, flags };
        let (kind, action) = (flags & DATA, flags & ACTION);
        if flags & !(DATA | ACTION) != 0 || !kind.is_power_of_two() || !action.is_power_of_two() {
            return Err(wrong);
        }
        let end = start.checked_add(count).filter(|end| *end <= available);
        let end = end.ok_or(Refusal::Index { command, index })?;
        if index >= KINDS {
            return Err(Refusal::Index { command, index });
        }
        let (first, last) = (start as u16, end as u16);
        if (kind, count) == (DATA_NONE, 0) {
            // Without any: the whole kind is given up.
            if action == TRIGGER {
                self.release(index, 0..available);
                return Ok(0..available as u16);
            }
            return Ok(first..last);
        }
        match kind {
            DATA_EVENTFD if action == TRIGGER => {
                let found = files.len();
                if found == 0 {
                    self.release(index, start..end);
                } else if found != count as usize {
                    return Err(Refusal::Files { command, found });
                } else {
                    let mut events = Vec::with_capacity(found);
                    for file in files.drain(..) {
                        let event = Event::new(file);
                        events.push(event.map_err(|_| Refusal::Files { command, found })?);
                    }
                    self.assign(index, start, events);
                }
            }
            DATA_NONE => {
                for number in start..end {
                    self.act(index, number, action).ok_or(wrong)?;
                }
            }
            DATA_BOOL => {
                if data.len() != count as usize {
                    let found = data.len();
                    return Err(Refusal::Length { command, found });
                }
                let chosen = (start..end).zip(data).filter(|(_, chosen)| **chosen != 0);
                for (number, _) in chosen {
                    self.act(index, number, action).ok_or(wrong)?;
                }
            }
            // Files that tell when the guest masks: nobody here can know.
            _ => return Err(wrong),
        }
        Ok(first..last)
    }

    fn release(&mut self, index: u32, range: Range<u32>) {
        match index {
            INTX => self.line.event = None,
            MSIX => {
                let messages = self.messages.iter_mut().skip(range.start as usize);
                let messages = messages.take(range.len());
                messages.for_each(|message| *message = None);
            }
            ERR => self.error = None,
            _ => {}
        }
    }

    fn assign(&mut self, index: u32, start: u32, events: Vec<Event>) {
        match index {
            INTX => {
                self.line.event = events.into_iter().next();
                self.line.masked = false;
                self.line.evaluate();
            }
            MSIX => {
                let messages = self.messages.iter_mut().skip(start as usize);
                for (message, event) in messages.zip(events) {
                    *message = Some(event);
                }
            }
            ERR => self.error = events.into_iter().next(),
            _ => {}
        }
    }

    /// Masks, unmasks or triggers one interrupt. `None` if that cannot be done to it.
    fn act(&mut self, index: u32, number: u32, action: u32) -> Option<()> {
        match (index, action) {
            (INTX, MASK) => self.line.masked = true,
            (INTX, UNMASK) => {
                self.line.masked = false;
                self.line.evaluate();
            }
            (INTX, TRIGGER) => {
                if let Some(event) = &self.line.event {
                    event.signal();
                }
            }
            (MSIX, TRIGGER) => self.message(number),
            _ => return None,
        }
        Some(())
    }
}
