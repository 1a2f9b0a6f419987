//! A socket, and the threads that serve whoever connects to it: one that waits for clients, one for the client that
//! is there. One client at a time: it is the machine that the device is plugged into. Another one is turned away
//! while it lives, and welcome when it has gone.

use super::Usage;
use super::client::{Door, Shared};
use super::connection::Stream;
use super::session::{Session, Traffic, power_off};
use crate::machine::{Guest, Remote};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A place where a virtual machine can plug in, before anything is behind it.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
    client: Shared,
}

impl Socket {
    /// A UNIX socket at `path`. One that a server left behind, and where nobody listens any more, is replaced.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match UnixStream::connect(path) {
                    Err(dead) if dead.kind() == io::ErrorKind::ConnectionRefused => {}
                    _ => return Err(error),
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        Ok(Self {
            path: path.into(),
            listener,
            client: Shared::default(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The machine at the other end, for [`World::add_guest`](crate::machine::World::add_guest).
    pub fn guest(&self) -> Box<dyn Guest> {
        Box::new(Door(self.client.clone()))
    }

    /// Begins to serve the function behind `remote`, which is without power until a client comes.
    pub fn serve(self, remote: Remote) -> io::Result<Server> {
        power_off(&remote);
        let inner = Arc::new(Inner {
            client: self.client,
            stopped: AtomicBool::new(false),
            traffic: Mutex::new(Sums::default()),
            listener: self.listener,
            current: Mutex::new(None),
            path: self.path,
        });
        let name = format!("serve {}", inner.path.display());
        let builder = std::thread::Builder::new().name(name);
        let thread = {
            let inner = inner.clone();
            builder.spawn(move || inner.accept(&remote))?
        };
        Ok(Server {
            inner,
            thread: Some(thread),
        })
    }
}

struct Inner {
    path: PathBuf,
    listener: UnixListener,
    client: Shared,
    stopped: AtomicBool,
    traffic: Mutex<Sums>,
    /// The session that is running.
    current: Mutex<Option<Current>>,
}

/// Messages of sessions that have ended, and of the one that is running.
#[derive(Default)]
struct Sums {
    ended: Traffic,
    running: Traffic,
}

struct Current {
    socket: UnixStream,
    thread: JoinHandle<()>,
}

impl Inner {
    fn accept(self: &Arc<Self>, remote: &Remote) {
        loop {
            let accepted = self.listener.accept();
            if self.stopped.load(Ordering::Acquire) {
                break;
            }
            let started = accepted.and_then(|(socket, _)| self.admit(socket, remote));
            if let Err(error) = started {
                log::warn!("{}: a client was turned away: {error}", self.path.display());
                if error.raw_os_error().is_some() {
                    // Out of files, say: not as fast as the system can fail.
                    let pause = Timespec {
                        tv_sec: 0,
                        tv_nsec: 100_000_000,
                    };
                    let _ = poll(&mut [], Some(&pause));
                }
            }
        }
        self.leave();
    }

    /// Starts a session, unless there is one.
    fn admit(self: &Arc<Self>, socket: UnixStream, remote: &Remote) -> io::Result<()> {
        let mut current = self.lock_current();
        if let Some(Current { socket, .. }) = &*current
            && !hung_up(socket)
        {
            let text = "another one is connected";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        if let Some(old) = current.take() {
            // It has hung up, so its thread ends.
            let _ = old.thread.join();
        }
        let (inner, remote) = (self.clone(), remote.clone());
        let own = socket.try_clone()?;
        let builder = std::thread::Builder::new().name(format!("guest {}", self.path.display()));
        let thread = builder.spawn(move || inner.session(&own, remote))?;
        *current = Some(Current { socket, thread });
        Ok(())
    }

    fn session(&self, socket: &UnixStream, remote: Remote) {
        let path = self.path.display();
        let Some(mut session) = Session::new(remote, self.client.clone()) else {
            log::warn!("{path}: the device has been taken out");
            let _ = socket.shutdown(std::net::Shutdown::Both);
            return;
        };
        log::info!("{path}: a client is here");
        let ending = Stream::new().run(socket.as_fd(), |header, body, files, out| {
            let result = session.handle(header, body, files, out);
            self.lock_traffic().running = session.traffic;
            result
        });
        log::info!("{path}: the client is gone: {ending}");
        let traffic = session.end();
        let mut sums = self.lock_traffic();
        sums.running = Traffic::default();
        sums.ended.add(traffic);
        drop(sums);
        // The peer may not know yet.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }

    fn lock_traffic(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_current(&self) -> std::sync::MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session that is running.
    fn leave(&self) {
        let current = self.lock_current().take();
        if let Some(Current { socket, thread }) = current {
            let _ = socket.shutdown(std::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

/// Has the peer closed its end?
fn hung_up(socket: &UnixStream) -> bool {
    let mut files = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ready = poll(&mut files, Some(&now));
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    ready.is_ok() && files.iter().any(|file| file.revents().intersects(gone))
}

/// A socket that is served. Dropped, it ends its session and removes the socket.
pub struct Server {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.inner.path).finish()
    }
}

impl Server {
    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What the device did to the client's memory, and interrupts that went out.
    pub fn usage(&self) -> Usage {
        self.inner.client.usage()
    }

    /// Messages of all sessions, the one that is running included.
    pub fn traffic(&self) -> Traffic {
        let sums = self.inner.lock_traffic();
        let mut all = sums.ended;
        all.add(sums.running);
        all
    }

    /// Ends the session, whose client finds its device gone. The next one is welcome.
    pub fn disconnect(&self) {
        self.inner.leave();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.stopped.store(true, Ordering::Release);
        // Ends the wait for clients.
        let _ = rustix::net::shutdown(&self.inner.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.inner.path);
    }
}
