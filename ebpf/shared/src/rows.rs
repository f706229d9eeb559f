//! Map rows: plain `repr(C)` data without padding, so that no uninitialised byte crosses the kernel boundary.

use crate::reason::REASON_SLOTS;

/// Declares a row and proves at compile time that every byte belongs to a field.
macro_rules! rows {
    ($($(#[$meta:meta])* pub struct $name:ident ($size:literal bytes) { $($(#[$field_meta:meta])* pub $field:ident : $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(0 $(+ size_of::<$type>())* == $size, "padding");
        };
    )*};
}

rows! {
    /// One sandbox, keyed by the ifindex of its interface in the wall's namespace. Addresses are in network byte order.
    ///
    /// Clones of one snapshot may have equal addresses: nothing here is a key, and the interface alone says who asks.
    #[derive(Default)]
    pub struct SandboxRow (80 bytes) {
        /// The sandbox's slot, 1 to 65,000.
        pub slot: u32,
        /// [`SandboxRow::QUARANTINED`] and [`SandboxRow::NO_IPV6`].
        pub flags: u32,
        /// Counts the rows that this wall has written, so that a proof of attachment names one of them.
        pub generation: u32,
        /// The sandbox's IPv4 address.
        pub ip4: [u8; 4],
        /// The gateway's IPv4 address.
        pub gateway4: [u8; 4],
        /// The sandbox's MAC address.
        pub mac: [u8; 6],
        /// The gateway's MAC address, which is the interface's own.
        pub gateway_mac: [u8; 6],
        /// The sandbox's IPv6 address.
        pub ip6: [u8; 16],
        /// The gateway's IPv6 address.
        pub gateway6: [u8; 16],
        /// The sandbox's link-local address, which may ask for the gateway and nothing else.
        pub link_local6: [u8; 16],
    }

    /// A sandbox's socket in the map that steers.
    #[derive(Default, Hash)]
    pub struct SocketKey (8 bytes) {
        /// The interface that the flow came in on.
        pub ifindex: u32,
        /// A [`Listener`](crate::Listener).
        pub listener: u32,
    }

    /// The counters of one interface on one CPU, indexed by [`Reason`](crate::Reason).
    pub struct CounterRow (512 bytes) {
        /// Frames, or flows for the reasons of the steering program.
        pub frames: [u64; REASON_SLOTS],
    }

    /// What the ring buffer tells about a frame.
    #[derive(Default)]
    pub struct EventRow (56 bytes) {
        /// How many frames this CPU has counted for this interface and reason, this one included.
        pub count: u64,
        /// The interface.
        pub ifindex: u32,
        /// A [`Reason`](crate::Reason).
        pub reason: u32,
        /// The frame's length.
        pub frame_bytes: u32,
        /// The `EtherType`, or the length of an 802.3 frame.
        pub ethertype: u16,
        /// The destination port of TCP or UDP, else 0.
        pub destination_port: u16,
        /// The IP protocol, or next header, else 0.
        pub protocol: u16,
        /// The source MAC address that the frame claims.
        pub source_mac: [u8; 6],
        /// The source address that it claims: IPv4 as `::ffff:a.b.c.d`; all zeros when it has none.
        pub source: [u8; 16],
        /// The mark that it had when it came: 0 from a sandbox; of the socket that sent it, towards one.
        pub mark: u32,
        /// Zeros.
        pub reserved: [u8; 4],
    }
}

impl SandboxRow {
    /// Nothing passes in either direction.
    pub const QUARANTINED: u32 = 1;
    /// IPv6 is off for this sandbox.
    pub const NO_IPV6: u32 = 2;

    /// Whether the sandbox is cut off.
    #[inline(always)]
    #[must_use]
    pub const fn is_quarantined(&self) -> bool {
        self.flags & Self::QUARANTINED != 0
    }
}

impl Default for CounterRow {
    fn default() -> Self {
        Self {
            frames: [0; REASON_SLOTS],
        }
    }
}
