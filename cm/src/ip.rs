//! IP addressing over CM (the RDMA IP CM service): a service is an IP protocol and a port, and the private data of the
//! request says from which address to which. What Linux's RDMA CM speaks. protocols 5.11.
//!
//! The passive side finds its listener by service ID, then by the destination address ([`IpRequest::of`]); who answers
//! with private data puts it at the beginning, without a header.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core_ib::wire::mad::{CmReq, CmSidrReq, IpCmHeader, Layout, ServiceId};

/// Bytes of a user's private data in a REQ.
pub const REQ_PRIVATE: usize = 92 - IpCmHeader::SIZE;
/// Bytes of a user's private data in a SIDR_REQ.
pub const SIDR_PRIVATE: usize = 216 - IpCmHeader::SIZE;

/// Why addresses or private data do not go into a request, or do not come out of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IpError {
    /// One address is IPv4, the other IPv6.
    Mixed,
    /// More private data than there is room for.
    PrivateTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes that there is room for.
        limit: usize,
    },
    /// The service is none of IP addressing.
    NotIp(ServiceId),
    /// The header is of a version that is not known.
    Version {
        /// Major version, 0 expected.
        major: u8,
        /// IP version, 4 or 6 expected.
        ip: u8,
    },
}

impl fmt::Display for IpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mixed => f.write_str("one address is IPv4 and the other IPv6"),
            Self::PrivateTooLong { len, limit } => {
                write!(f, "{len} bytes of private data, and room for {limit}")
            }
            Self::NotIp(id) => write!(f, "service {id} has no IP addresses"),
            Self::Version { major, ip } => {
                write!(f, "header of version {major} for IPv{ip} is not known")
            }
        }
    }
}

impl core::error::Error for IpError {}

/// The service that a listener of `protocol` ([`ServiceId::PROTOCOL_TCP`] for connections,
/// [`ServiceId::PROTOCOL_UDP`] for datagrams) at `port` has.
pub const fn service(protocol: u8, port: u16) -> ServiceId {
    ServiceId::ip(protocol, port)
}

/// Private data of a request from `src` to `dst`: 92 bytes for [`Connect`](crate::Connect), 216 for
/// [`Resolve`](crate::Resolve). The service is that of `dst`'s port.
pub fn private<const N: usize>(
    src: SocketAddr,
    dst: IpAddr,
    user: &[u8],
) -> Result<[u8; N], IpError> {
    let header = IpCmHeader::new(src.ip(), src.port(), dst).ok_or(IpError::Mixed)?;
    let (len, limit) = (user.len(), N.saturating_sub(IpCmHeader::SIZE));
    let too_long = IpError::PrivateTooLong { len, limit };
    let mut data = [0; N];
    let (head, rest) = data
        .split_first_chunk_mut::<{ IpCmHeader::SIZE }>()
        .ok_or(too_long)?;
    *head = header.to_bytes();
    rest.get_mut(..len).ok_or(too_long)?.copy_from_slice(user);
    Ok(data)
}

/// A request between IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpRequest<'a> {
    /// TCP or UDP by its number, or another port space.
    pub protocol: u8,
    /// From where.
    pub src: SocketAddr,
    /// To where.
    pub dst: SocketAddr,
    /// The user's private data.
    pub private: &'a [u8],
}

impl<'a> IpRequest<'a> {
    /// What a REQ says.
    pub fn of(req: &'a CmReq) -> Result<Self, IpError> {
        Self::read(req.service_id, &req.private)
    }

    /// What a SIDR_REQ says.
    pub fn of_sidr(req: &'a CmSidrReq) -> Result<Self, IpError> {
        Self::read(req.service_id, &req.private)
    }

    fn read(id: ServiceId, data: &'a [u8]) -> Result<Self, IpError> {
        let (protocol, port) = id.as_ip().ok_or(IpError::NotIp(id))?;
        let header = IpCmHeader::read(data).map_err(|_| IpError::NotIp(id))?;
        let version = IpError::Version {
            major: header.major_version,
            ip: header.ip_version,
        };
        let (src, dst) = header.addresses().ok_or(version)?;
        Ok(Self {
            protocol,
            src: SocketAddr::new(src, header.src_port),
            dst: SocketAddr::new(dst, port),
            private: data.get(IpCmHeader::SIZE..).unwrap_or(&[]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_request_says_is_what_was_put_in() {
        let src: SocketAddr = "10.0.0.1:4321".parse().unwrap();
        let dst: IpAddr = "10.0.0.2".parse().unwrap();
        let req = CmReq {
            service_id: service(ServiceId::PROTOCOL_TCP, 7174),
            private: private(src, dst, b"hello").unwrap(),
            ..CmReq::default()
        };
        let ip = IpRequest::of(&req).unwrap();
        assert_eq!((ip.protocol, ip.src), (6, src));
        assert_eq!(ip.dst, SocketAddr::new(dst, 7174));
        assert_eq!(
            (ip.private.len(), &ip.private[..6]),
            (REQ_PRIVATE, &b"hello\0"[..])
        );
        assert_eq!(REQ_PRIVATE, 56);
        assert_eq!(SIDR_PRIVATE, 180);
        let (len, limit) = (57, 56);
        let long = private::<92>(src, dst, &[0; 57]);
        assert_eq!(long, Err(IpError::PrivateTooLong { len, limit }));
        let mixed = private::<92>(src, "::1".parse().unwrap(), &[]);
        assert_eq!(mixed, Err(IpError::Mixed));
        let other = CmReq {
            service_id: ServiceId(5),
            ..req
        };
        assert_eq!(IpRequest::of(&other), Err(IpError::NotIp(ServiceId(5))));
        let strange = CmReq {
            private: [0x11; 92],
            ..req
        };
        let version = IpError::Version { major: 1, ip: 1 };
        assert_eq!(IpRequest::of(&strange), Err(version));
    }

    proptest! {
        #[test]
        fn any_addresses_of_one_family_come_out_as_they_went_in(
            a: u128, b: u128, v6: bool, port: u16, src_port: u16, user in proptest::collection::vec(any::<u8>(), 0..181),
        ) {
            let ip = |bits: u128| match v6 {
                true => IpAddr::from(bits.to_be_bytes()),
                false => IpAddr::from((bits as u32).to_be_bytes()),
            };
            let src = SocketAddr::new(ip(a), src_port);
            let req = CmSidrReq {
                service_id: service(ServiceId::PROTOCOL_UDP, port),
                private: private(src, ip(b), &user).unwrap(),
                ..CmSidrReq::default()
            };
            let read = IpRequest::of_sidr(&req).unwrap();
            prop_assert_eq!((read.src, read.dst), (src, SocketAddr::new(ip(b), port)));
            prop_assert_eq!(&read.private[..user.len()], &user[..]);
        }
    }
}
