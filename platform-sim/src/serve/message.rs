//! Messages of vfio-user as they lie on the socket: a header of 16 bytes and a body, in the byte order of the
//! machine.
//!
//! A view lies over bytes and believes nothing; a [`Request`] is what a client asks for. Layouts: the protocol's
//! specification (`docs/interop/vfio-user` of QEMU), version 0.1.

use super::Refusal;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::native_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub(super) const HEADER: usize = size_of::<Header>();
/// Most bytes of data in one message; the server says so when it introduces itself.
pub(super) const MAX_DATA: usize = 64 << 10;
/// Longest message that is read. Longer ones end the session, since what follows them cannot be found.
pub(super) const MAX_MESSAGE: usize = HEADER + 64 + MAX_DATA;
/// Most files with one message.
pub(super) const MAX_FILES: usize = 16;

/// What a message asks for. An open set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16);

impl Command {
    /// The two sides introduce themselves.
    pub const VERSION: Self = Self(1);
    /// Memory of the client can be reached.
    pub const DMA_MAP: Self = Self(2);
    /// It no longer can.
    pub const DMA_UNMAP: Self = Self(3);
    /// What the device is.
    pub const GET_INFO: Self = Self(4);
    /// What a region (BAR, configuration space) is.
    pub const GET_REGION_INFO: Self = Self(5);
    /// Files that stand for stores to a region.
    pub const GET_REGION_IO_FDS: Self = Self(6);
    /// What a kind of interrupt is.
    pub const GET_IRQ_INFO: Self = Self(7);
    /// How interrupts reach the client.
    pub const SET_IRQS: Self = Self(8);
    /// A load.
    pub const REGION_READ: Self = Self(9);
    /// A store.
    pub const REGION_WRITE: Self = Self(10);
    /// The conventional reset.
    pub const RESET: Self = Self(13);
    /// Several stores of at most 8 bytes.
    pub const REGION_WRITE_MULTI: Self = Self(15);
}

/// The header as it lies on the socket.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct Header {
    pub(super) id: U16,
    command: U16,
    size: U32,
    flags: U32,
    error: U32,
}
const_assert_eq!(size_of::<Header>(), 16);

const REPLY: u32 = 1;
const TYPE: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

impl Header {
    /// A command.
    pub(super) fn command_of(id: u16, command: Command, body: usize, reply: bool) -> Self {
        Self {
            id: U16::new(id),
            command: U16::new(command.0),
            size: U32::new((HEADER + body) as u32),
            flags: U32::new(if reply { 0 } else { NO_REPLY }),
            error: U32::new(0),
        }
    }

    /// The reply to this command, with `body` bytes behind it.
    pub(super) fn reply(&self, body: usize) -> Self {
        Self {
            size: U32::new((HEADER + body) as u32),
            flags: U32::new(REPLY),
            error: U32::new(0),
            ..*self
        }
    }

    /// The reply that says why not.
    pub(super) fn refusal(&self, errno: u32) -> Self {
        Self {
            flags: U32::new(REPLY | ERROR),
            error: U32::new(errno),
            ..self.reply(0)
        }
    }

    pub(super) fn command(&self) -> Command {
        Command(self.command.get())
    }

    /// Bytes of the whole message.
    pub(super) fn size(&self) -> usize {
        self.size.get() as usize
    }

    pub(super) fn is_command(&self) -> bool {
        self.flags.get() & TYPE == 0
    }

    pub(super) fn wants_reply(&self) -> bool {
        self.flags.get() & NO_REPLY == 0
    }

    /// What a reply says: the error number, if it is one.
    pub(super) fn error(&self) -> Option<u32> {
        (self.flags.get() & ERROR != 0).then(|| self.error.get())
    }
}

/// The message at the start of `bytes`: its header and its body. `None` if it is not there as a whole yet.
pub(super) fn split(bytes: &[u8]) -> Result<Option<(Header, &[u8])>, Refusal> {
    let Ok((header, _)) = Header::read_from_prefix(bytes) else {
        return Ok(None);
    };
    let size = header.size();
    if !(HEADER..=MAX_MESSAGE).contains(&size) {
        return Err(Refusal::Length {
            command: header.command(),
            found: size,
        });
    }
    let body = bytes.get(HEADER..size);
    Ok(body.map(|body| (header, body)))
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct VersionBody {
    pub(super) major: U16,
    pub(super) minor: U16,
}

/// Body of a map.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct DmaMapBody {
    argsz: U32,
    flags: U32,
    offset: U64,
    address: U64,
    size: U64,
}
const_assert_eq!(size_of::<DmaMapBody>(), 32);

/// Body of an unmap, and of its reply.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct DmaUnmapBody {
    argsz: U32,
    flags: U32,
    address: U64,
    size: U64,
}
const_assert_eq!(size_of::<DmaUnmapBody>(), 24);

/// Body of the reply that says what the device is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct InfoBody {
    pub(super) argsz: U32,
    pub(super) flags: U32,
    pub(super) regions: U32,
    pub(super) irqs: U32,
}
const_assert_eq!(size_of::<InfoBody>(), 16);

/// Body of question and answer about a region.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct RegionInfoBody {
    pub(super) argsz: U32,
    pub(super) flags: U32,
    pub(super) index: U32,
    pub(super) cap_offset: U32,
    pub(super) size: U64,
    pub(super) offset: U64,
}
const_assert_eq!(size_of::<RegionInfoBody>(), 32);

/// Body of question and answer about a kind of interrupt, and about files for a region.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct IndexBody {
    pub(super) argsz: U32,
    pub(super) flags: U32,
    pub(super) index: U32,
    pub(super) count: U32,
}
const_assert_eq!(size_of::<IndexBody>(), 16);

/// Body of a setting of interrupts, without its data.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct SetIrqsBody {
    pub(super) argsz: U32,
    pub(super) flags: U32,
    pub(super) index: U32,
    pub(super) start: U32,
    pub(super) count: U32,
}
const_assert_eq!(size_of::<SetIrqsBody>(), 20);

/// Body of a load or store, without its data.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct AccessBody {
    pub(super) offset: U64,
    pub(super) region: U32,
    pub(super) count: U32,
}
const_assert_eq!(size_of::<AccessBody>(), 16);

/// One store of several.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct SmallWrite {
    pub(super) at: AccessBody,
    pub(super) data: [u8; 8],
}
const_assert_eq!(size_of::<SmallWrite>(), 24);

/// What a client asks for, its lengths checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request<'a> {
    Version {
        major: u16,
        minor: u16,
        capabilities: &'a [u8],
    },
    DmaMap {
        read: bool,
        write: bool,
        offset: u64,
        address: u64,
        len: u64,
    },
    /// Of exactly this region; of all of them if `all`.
    DmaUnmap {
        all: bool,
        address: u64,
        len: u64,
    },
    GetInfo,
    GetRegionInfo {
        index: u32,
    },
    GetRegionIoFds {
        index: u32,
    },
    GetIrqInfo {
        index: u32,
    },
    SetIrqs {
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        data: &'a [u8],
    },
    Read(AccessBody),
    Write(AccessBody, &'a [u8]),
    WriteMulti(&'a [SmallWrite]),
    Reset,
}

impl<'a> Request<'a> {
    /// Reads the body of a command.
    pub(super) fn read(command: Command, body: &'a [u8]) -> Result<Self, Refusal> {
        let short = Refusal::Length {
            command,
            found: HEADER + body.len(),
        };
        let request = match command {
            Command::VERSION => {
                let (head, capabilities) = VersionBody::ref_from_prefix(body).map_err(|_| short)?;
                Self::Version {
                    major: head.major.get(),
                    minor: head.minor.get(),
                    capabilities,
                }
            }
            Command::DMA_MAP => {
                let map = DmaMapBody::ref_from_bytes(body).map_err(|_| short)?;
                let flags = map.flags.get();
                if flags & !3 != 0 {
                    return Err(Refusal::Flags { command, flags });
                }
                Self::DmaMap {
                    read: flags & 1 != 0,
                    write: flags & 2 != 0,
                    offset: map.offset.get(),
                    address: map.address.get(),
                    len: map.size.get(),
                }
            }
            Command::DMA_UNMAP => {
                let unmap = DmaUnmapBody::ref_from_bytes(body).map_err(|_| short)?;
                let flags = unmap.flags.get();
                if flags & !2 != 0 {
                    return Err(Refusal::Flags { command, flags });
                }
                Self::DmaUnmap {
                    all: flags & 2 != 0,
                    address: unmap.address.get(),
                    len: unmap.size.get(),
                }
            }
            Command::GET_INFO => {
                // Only the first field of the question means something.
                body.first_chunk::<4>().ok_or(short)?;
                Self::GetInfo
            }
            Command::GET_REGION_INFO => {
                let (info, _) = IndexBody::ref_from_prefix(body).map_err(|_| short)?;
                Self::GetRegionInfo {
                    index: info.index.get(),
                }
            }
            Command::GET_REGION_IO_FDS => {
                let (info, _) = IndexBody::ref_from_prefix(body).map_err(|_| short)?;
                Self::GetRegionIoFds {
                    index: info.index.get(),
                }
            }
            Command::GET_IRQ_INFO => {
                let (info, _) = IndexBody::ref_from_prefix(body).map_err(|_| short)?;
                Self::GetIrqInfo {
                    index: info.index.get(),
                }
            }
            Command::SET_IRQS => {
                let (set, data) = SetIrqsBody::ref_from_prefix(body).map_err(|_| short)?;
                Self::SetIrqs {
                    flags: set.flags.get(),
                    index: set.index.get(),
                    start: set.start.get(),
                    count: set.count.get(),
                    data,
                }
            }
            Command::REGION_READ => {
                let access = AccessBody::read_from_bytes(body).map_err(|_| short)?;
                Self::Read(access)
            }
            Command::REGION_WRITE => {
                let (access, data) = AccessBody::read_from_prefix(body).map_err(|_| short)?;
                if access.count.get() as usize != data.len() {
                    return Err(short);
                }
                Self::Write(access, data)
            }
            Command::REGION_WRITE_MULTI => {
                let (count, writes) = U64::ref_from_prefix(body).map_err(|_| short)?;
                let writes = <[SmallWrite]>::ref_from_bytes(writes).map_err(|_| short)?;
                if count.get() != writes.len() as u64 {
                    return Err(short);
                }
                Self::WriteMulti(writes)
            }
            Command::RESET => Self::Reset,
            _ => return Err(Refusal::Command(command)),
        };
        Ok(request)
    }
}
