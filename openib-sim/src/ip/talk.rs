//! TCP connections over which programs agree on something: short messages of lengths that both ends know.

use super::IpHost;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use smoltcp::wire::{IpAddress, IpEndpoint};
use std::net::SocketAddr;

/// Bytes of either window.
const WINDOW: usize = 64 * 1024;

/// A connection, or one that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Talk(SocketHandle);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TalkState {
    /// Nobody has called, or nobody has answered yet.
    Waiting,
    /// Something can be said.
    Open,
    /// One end has hung up, and all that was heard was taken; or both have, and what was heard can still be.
    Over,
}

impl IpHost {
    fn talk(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        self.sockets.add(socket)
    }

    /// Waits for one connection to `port`.
    pub fn await_call(&mut self, port: u16) -> Talk {
        let socket = self.talk();
        // Fails for port 0 alone, and is over then.
        let _ = self.sockets.get_mut::<tcp::Socket<'_>>(socket).listen(port);
        Talk(socket)
    }

    /// Connects to `peer`.
    pub fn call(&mut self, peer: SocketAddr) -> Talk {
        let socket = self.talk();
        let local = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(49152);
        let remote = IpEndpoint::new(IpAddress::from(peer.ip()), peer.port());
        let context = self.interface.context();
        let tcp = self.sockets.get_mut::<tcp::Socket<'_>>(socket);
        // Fails where there is no address of that family, and is over then.
        let _ = tcp.connect(context, remote, local);
        Talk(socket)
    }

    /// How far `talk` has come.
    pub fn talk_state(&self, talk: Talk) -> TalkState {
        let socket = self.sockets.get::<tcp::Socket<'_>>(talk.0);
        match socket.state() {
            tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived => {
                TalkState::Waiting
            }
            _ if socket.may_send() && socket.may_recv() => TalkState::Open,
            _ => TalkState::Over,
        }
    }

    /// Says all of `words`, or nothing if there is no room for them. Says which.
    pub fn say(&mut self, talk: Talk, words: &[u8]) -> bool {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(talk.0);
        let room = socket.send_capacity() - socket.send_queue();
        room >= words.len()
            && socket
                .send_slice(words)
                .is_ok_and(|said| said == words.len())
    }

    /// Takes the next `len` bytes, once they are all there.
    pub fn hear(&mut self, talk: Talk, len: usize) -> Option<Vec<u8>> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(talk.0);
        if socket.recv_queue() < len {
            return None;
        }
        let mut words = vec![0; len];
        let heard = socket.recv_slice(&mut words).ok()?;
        (heard == len).then_some(words)
    }

    /// Ends `talk`, which is not to be used any more: what was said still arrives.
    pub fn hang_up(&mut self, talk: Talk) {
        self.sockets.get_mut::<tcp::Socket<'_>>(talk.0).close();
        self.hung_up.push(talk.0);
    }

    /// Forgets those that both ends have ended.
    pub(super) fn forget_talks(&mut self) {
        let sockets = &mut self.sockets;
        self.hung_up.retain(|handle| {
            let open = sockets.get::<tcp::Socket<'_>>(*handle).is_open();
            if !open {
                sockets.remove(*handle);
            }
            open
        });
    }
}
