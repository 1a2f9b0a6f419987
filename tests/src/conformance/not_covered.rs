//! The lines of chapter 14 of the reference without a case, and why.

/// Number of the line, and the reason.
pub const NOT_COVERED: &[(u32, &str)] = &[
    (
        27,
        "the client registry is core-ib's and no device's: its tests are there",
    ),
    (28, "as T027"),
    (29, "as T027"),
    (
        30,
        "there are no device handlers: consumers pull events (core-ib::verbs)",
    ),
    (79, "no machine of the tests has 2 GiB to send"),
    (
        82,
        "every_kind_of_bad_send_buffer_completes_with_loc_prot proves it over UD",
    ),
    (
        85,
        "needs an MDRA below the MRA of the peer and reads that are held up",
    ),
    (117, "needs a peer that sends malformed responses"),
    (
        118,
        "needs a device that makes up syndromes: the driver's own tests on its fake",
    ),
    (125, "fast registration is not in the verbs yet"),
    (126, "as T125"),
    (127, "no device here sends with invalidate"),
    (129, "no device here has windows of type 2"),
    (131, "as T129"),
    (
        153,
        "needs an HCA that sends by a path of which its peer does not know",
    ),
    (
        165,
        "needs a device that swallows a command: the driver's own tests on its fake",
    ),
    (
        166,
        "needs a machine that can open the HCA a second time within a case",
    ),
    (
        168,
        "needs a device that lies: property tests of the driver",
    ),
];
