//! Queries: Get and GetTable of any record. protocols 4.1.
//!
//! A kind of record is a [`Source`]: it lists numbers that may match, and makes the record of a number. Numbers are what
//! a long answer keeps, so they name rows of the books.

use super::transfer::Kind;
use super::{Answer, RecordBytes, Request};
use crate::manager::Manager;
use core_ib::wire::mad::{
    Attribute, AttributeId, ComponentMask, GuidInfoRecord, InformInfoRecord,
    LinearForwardingTableRecord, LinkRecord, MadStatus, McMemberRecord, Method,
    MulticastForwardingTableRecord, NodeRecord, PKeyTableRecord, PathRecord, PortInfoRecord,
    ServiceRecord, SlToVlMappingTableRecord, SmInfoRecord, SwitchInfoRecord,
    VlArbitrationTableRecord,
};

/// A kind of record that can be asked for.
pub(super) trait Source: Attribute {
    /// Refuses a query that makes no sense.
    fn check(_: &Manager<'_>, _: &Query<'_, Self>) -> Result<(), MadStatus> {
        Ok(())
    }

    /// Calls `each` with the number of every record that may match `query`, until it says that it has enough.
    fn numbers(manager: &Manager<'_>, query: &Query<'_, Self>, each: &mut dyn FnMut(u32) -> Enough);

    /// The record of a number; none if it is gone.
    fn make(manager: &Manager<'_>, what: &Kind, number: u32) -> Option<Self>;

    /// Matches `query`, selectors and all.
    fn is_wanted(&self, query: &Query<'_, Self>) -> bool;
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Enough(pub(super) bool);

/// What is asked for.
pub(super) struct Query<'r, R> {
    pub(super) record: R,
    pub(super) mask: ComponentMask,
    pub(super) request: &'r Request<'r>,
}

impl<R> Query<'_, R> {
    pub(super) fn has(&self, components: ComponentMask) -> bool {
        self.mask.has(components)
    }
}

/// Calls a generic method for the record type of an attribute.
macro_rules! dispatch {
    ($attribute:expr, $record:ident => $with:expr, _ => $otherwise:expr) => {
        dispatch!(@ $attribute, $record, $with, $otherwise,
            NODE_RECORD NodeRecord,
            PORT_INFO_RECORD PortInfoRecord,
            SL_TO_VL_MAPPING_TABLE_RECORD SlToVlMappingTableRecord,
            SWITCH_INFO_RECORD SwitchInfoRecord,
            LINEAR_FORWARDING_TABLE_RECORD LinearForwardingTableRecord,
            MULTICAST_FORWARDING_TABLE_RECORD MulticastForwardingTableRecord,
            SM_INFO_RECORD SmInfoRecord,
            LINK_RECORD LinkRecord,
            GUID_INFO_RECORD GuidInfoRecord,
            SERVICE_RECORD ServiceRecord,
            P_KEY_TABLE_RECORD PKeyTableRecord,
            PATH_RECORD PathRecord,
            VL_ARBITRATION_TABLE_RECORD VlArbitrationTableRecord,
            MC_MEMBER_RECORD McMemberRecord,
            INFORM_INFO_RECORD InformInfoRecord,
        )
    };
    (@ $attribute:expr, $record:ident, $with:expr, $otherwise:expr,
        $($id:ident $type:ident,)*) => {
        match $attribute {
            $(AttributeId::$id => { type $record = $type; $with })*
            _ => $otherwise,
        }
    };
}

impl Manager<'_> {
    /// Get or GetTable.
    pub(super) fn query(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let unsupported = Err(MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE);
        dispatch!(request.header.header.attribute, R => self.query_of::<R>(request), _ => unsupported)
    }

    /// Bytes of a record of this kind.
    pub(super) fn record_size(attribute: AttributeId) -> usize {
        dispatch!(attribute, R => R::SIZE, _ => 8)
    }

    /// The record of a number, as it goes on the wire.
    pub(super) fn record_bytes(&self, what: &Kind, number: u32) -> RecordBytes {
        dispatch!(what.attribute, R => {
            let record = <R as Source>::make(self, what, number);
            record.map_or(RecordBytes::GONE, |record| RecordBytes::of(&record))
        }, _ => RecordBytes::GONE)
    }

    fn query_of<R: Source>(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let query = Query::<R> {
            record: request.record()?,
            mask: request.mask(),
            request,
        };
        let what = Kind {
            attribute: R::ID,
            trusted: request.trusted,
            query: *request
                .received
                .mad
                .data()
                .first_chunk()
                .ok_or(MadStatus::SA_REQUEST_INVALID)?,
            mask: query.mask,
        };
        R::check(self, &query)?;
        if request.header.header.method == Method::GET {
            return self.get_one(&query, &what);
        }
        let Some(index) = self.free_transfer(request)? else {
            return Ok(Answer::Nothing);
        };
        let capacity = self.st.records;
        // Lent out, so that the numbers can be written while the books are read.
        let records = core::mem::take(&mut self.records);
        let from = index.saturating_mul(capacity);
        let places = records
            .get_mut(from..)
            .and_then(|records| records.get_mut(..capacity));
        let mut places = places.into_iter().flatten();
        let (mut count, mut full) = (0, false);
        R::numbers(self, &query, &mut |number| {
            let record = R::make(self, &what, number);
            if record.is_none_or(|record| !record.is_wanted(&query)) {
                return Enough(false);
            }
            match places.next() {
                Some(place) => {
                    *place = number;
                    count += 1;
                }
                None => full = true,
            }
            Enough(full)
        });
        self.records = records;
        if full {
            self.no_room("records", capacity);
            return Err(MadStatus::SA_NO_RESOURCES);
        }
        self.begin_transfer(request, index, what, count, R::SIZE)
    }

    /// Get: there must be one record, and no more.
    fn get_one<R: Source>(&self, query: &Query<'_, R>, what: &Kind) -> Result<Answer, MadStatus> {
        let mut found = None;
        let mut several = false;
        R::numbers(self, query, &mut |number| {
            if let Some(record) = R::make(self, what, number)
                && record.is_wanted(query)
            {
                several = found.is_some();
                found = Some(record);
            }
            Enough(several)
        });
        if several {
            return Err(MadStatus::SA_TOO_MANY_RECORDS);
        }
        let record = found.ok_or(MadStatus::SA_NO_RECORDS)?;
        Ok(Answer::One(RecordBytes::of(&record)))
    }
}
