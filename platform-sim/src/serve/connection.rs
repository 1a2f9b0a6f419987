//! Bytes and files of one client: cuts the stream into messages and hands each to the session with the files that
//! came with it.
//!
//! A client that posts stores sends many short messages; all that have arrived are read at once, and all replies go
//! out in one write. The kernel never joins what came before files with what comes after them, so files belong to the
//! last message that has begun.

use super::Refusal;
use super::message::{self, Header, MAX_FILES, MAX_MESSAGE};
use core::fmt;
use core::mem::MaybeUninit;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Why a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client closed it, or the server was stopped.
    Closed,
    /// In the middle of a message.
    Broken {
        /// How much of it had come.
        bytes: usize,
    },
    /// What came cannot be answered.
    Refused(Refusal),
    /// The socket failed.
    Socket(rustix::io::Errno),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "closed"),
            Self::Broken { bytes } => write!(f, "closed {bytes} bytes into a message"),
            Self::Refused(refusal) => write!(f, "ended by the server: {refusal}"),
            Self::Socket(errno) => write!(f, "the socket failed: {errno}"),
        }
    }
}

/// What was received and is not used up.
pub(super) struct Stream {
    buffer: Box<[u8]>,
    /// How much of it is filled.
    filled: usize,
    /// Files of the message at the start of the buffer, of which more is to come.
    held: Vec<OwnedFd>,
    replies: Vec<u8>,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; MAX_MESSAGE].into(),
            filled: 0,
            held: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// Talks until one side has enough. Every message goes to `handle`, which appends its reply.
    pub(super) fn run(
        &mut self,
        socket: BorrowedFd<'_>,
        mut handle: impl FnMut(&Header, &[u8], &mut Vec<OwnedFd>, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Ending {
        loop {
            let mut files = Vec::new();
            let room = self.buffer.get_mut(self.filled..).unwrap_or(&mut []);
            match receive(socket, room, &mut files) {
                Ok(0) if self.filled == 0 => return Ending::Closed,
                Ok(0) => return Ending::Broken { bytes: self.filled },
                Ok(count) => self.filled += count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Ending::Socket(errno),
            }
            let result = self.take(files, &mut handle);
            let sent = send_all(socket, &self.replies);
            self.replies.clear();
            match (result, sent) {
                (Err(refusal), _) => return Ending::Refused(refusal),
                (_, Err(errno)) => return Ending::Socket(errno),
                _ => {}
            }
        }
    }

    /// Takes bytes as if they had been received, with these files; nobody reads the replies.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        files: Vec<OwnedFd>,
        mut handle: impl FnMut(&Header, &[u8], &mut Vec<OwnedFd>, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let room = self.buffer.get_mut(self.filled..).unwrap_or(&mut []);
        for (place, byte) in room.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.filled += bytes.len().min(room.len());
        let result = self.take(files, &mut handle);
        self.replies.clear();
        result
    }

    /// Handles all messages that are there as a whole.
    fn take(
        &mut self,
        mut files: Vec<OwnedFd>,
        handle: &mut impl FnMut(&Header, &[u8], &mut Vec<OwnedFd>, &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut start = 0;
        while start < self.filled {
            let rest = self.buffer.get(start..self.filled).unwrap_or(&[]);
            let Some((header, body)) = message::split(rest)? else {
                break;
            };
            let size = header.size();
            let mut with = core::mem::take(&mut self.held);
            if start + size >= self.filled {
                with.append(&mut files);
            }
            handle(&header, body, &mut with, &mut self.replies)?;
            start += size;
        }
        self.held.append(&mut files);
        self.held.truncate(MAX_FILES);
        self.buffer.copy_within(start..self.filled, 0);
        self.filled -= start;
        Ok(())
    }
}

/// Waits for bytes, and the files that come with them.
fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(room)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok(received.bytes)
}

fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or(&[]),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
