# Hosts by name, from `data.allow`:
#
#   "allow": {
#     "hosts":   {"api.example.com": [{"methods": ["GET", "HEAD"], "paths": ["/repos/"], "credentials": ["github-read"]}]},
#     "domains": {"example.org":     [{"methods": ["GET"]}]}
#   }
#
# `hosts` matches the name exactly, `domains` the names below it, at whole labels. In a rule, `methods` is required; `paths`
# are prefixes of whole segments when they end in `/`, else exact (default: every path); `ports` default to 443 and 80;
# `protocols` default to `http`; `credentials` are injected; `add_taints` are remembered; `limits` bound the request.
package wallgate

import rego.v1

host_rules := rules if {
	rules := data.allow.hosts[input.request.host]
} else := domain_rules[0]

# The rules of `b.example.org`, `example.org` and `org` for `a.b.example.org`; the nearest first.
domain_rules := [rules |
	labels := split(input.request.host, ".")
	some start, _ in labels
	start > 0
	domain := concat(".", array.slice(labels, start, count(labels)))
	rules := data.allow.domains[domain]
]

permission := permissions[0] if count(permissions) > 0

permissions := array.concat(mirror_permissions, host_permissions)

host_permissions := [granted |
	some rule in host_rules
	rule_applies(rule)
	granted := allowed_by(rule)
]

allowed_by(rule) := object.union(
	allow("host.listed", "The host is listed for this method and path.", object.get(rule, "credentials", [])),
	object.filter(rule, ["add_taints", "limits"]),
)

# A name may be looked up exactly when some request to it could be allowed.
rule_applies(_) if input.request.protocol == "dns"

rule_applies(rule) if {
	input.request.protocol in object.get(rule, "protocols", ["http"])
	input.request.method in rule.methods
	input.request.port in object.get(rule, "ports", [443, 80])
	path_applies(rule)
}

path_applies(rule) if not rule.paths

path_applies(rule) if {
	some path in rule.paths
	path_matches(path)
}

path_matches(path) if path == input.request.path

path_matches(path) if {
	endswith(path, "/")
	startswith(input.request.path, path)
}
