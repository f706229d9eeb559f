# Package mirrors and git servers: usable for reading and nothing else (P8).
#
# A host is a mirror when the operator's configuration names it in a `[[service]]` with a profile. The classifier names the
# operation of each request; what it does not know counts as a write. `data.mirrors` may say more about one service:
#
#   "mirrors": {"npm": {"credentials": ["npm-read"], "search": true, "closed": false}}
package wallgate

import rego.v1

is_mirror if {
	input.destination.service
	input.operation.ecosystem != "none"
}

# A name lookup is no operation of any ecosystem; the name of a mirror may be looked up.
is_mirror if {
	input.destination.service
	input.request.protocol == "dns"
}

default mirror := {}

mirror := data.mirrors[input.destination.service]

# Operations that are reads, by action; searching and listing tell what others put there, so they are off by default.
mirror_permissions := [granted |
	is_mirror
	not object.get(mirror, "closed", false)
	mirror_read
	granted := allow("mirror.read", "Reading from a mirror.", object.get(mirror, "credentials", []))
]

mirror_read if input.request.protocol == "dns"

mirror_read if {
	input.operation.action == "read"
	input.request.protocol == "http"
}

mirror_read if {
	input.operation.action in {"search", "list"}
	object.get(mirror, input.operation.action, false) == true
}

refusals contains deny("mirror.write", sprintf("%s writes to a mirror, and mirrors are read-only.", [input.operation.name])) if {
	is_mirror_request
	input.operation.action == "write"
}

refusals contains deny("mirror.admin", sprintf("%s manages the mirror itself, which no sandbox does.", [input.operation.name])) if {
	is_mirror_request
	input.operation.action == "admin"
}

refusals contains deny("mirror.fetch_url", "This would make the mirror fetch an address of the sandbox's choice.") if {
	is_mirror_request
	input.operation.action == "fetch_url"
}

refusals contains deny("mirror.unknown", sprintf("This is no %s operation that wallgate knows, so it counts as a write, and mirrors are read-only.", [input.operation.ecosystem])) if {
	is_mirror_request
	input.operation.action == "unknown"
}

refusals contains deny("mirror.search", sprintf("%s looks through what others put there, which this mirror's configuration does not allow. Name the package instead.", [input.operation.name])) if {
	is_mirror_request
	input.operation.action in {"search", "list"}
	not mirror_read
}

is_mirror_request if {
	is_mirror
	input.request.protocol != "dns"
}
