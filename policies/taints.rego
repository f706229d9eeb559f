# What a sandbox has seen decides what it may still do. A rule adds a taint by `add_taints` (hosts.rego), for example
# `saw:internal-docs`; `data.taints` lists those after which nothing is written to public hosts.
#
#   "taints": {"no_public_writes": ["saw:internal-docs"]}
package wallgate

import rego.v1

refusals contains deny("taint.no_public_writes", "This sandbox has read internal material, so it may no longer write to public hosts.") if {
	some taint in input.sandbox.taints
	taint in data.taints.no_public_writes
	not input.destination.service
	not input.request.method in {"GET", "HEAD"}
	input.request.protocol != "dns"
}
