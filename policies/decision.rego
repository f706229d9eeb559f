# The decision: the first refusal that applies, else a permission, else no.
#
# A refusal always wins over a permission, whatever order the files are read in. Refusals are in never.rego, mirrors.rego,
# hosts.rego and examples/; permissions are in hosts.rego and mirrors.rego. Each file says what it takes from `data`.
package wallgate

import rego.v1

decision := first_refusal if {
	count(refusals) > 0
} else := permission if {
	permission
} else := unlisted

# One refusal is told: the one whose name comes first, so that the same request always gets the same answer.
first_refusal := [refusal | some refusal in refusals; refusal.rule == first_rule][0]

first_rule := min({refusal.rule | some refusal in refusals})

# A host that some rule speaks of, but not for this request, says so; a host that no rule speaks of is told to ask.
unlisted := deny(
	"host.method_or_path",
	sprintf("No rule allows %s %s at %s; other requests to this host are allowed. Ask for access if the task needs it.", [input.request.method, input.request.path, input.request.host]),
) if {
	host_rules
	input.request.protocol != "dns"
} else := deny("default", "No rule allows this host. Ask for access with a reason, or quit if the task cannot be done without it.")

deny(rule, reason) := {"verdict": "deny", "rule": rule, "reason": reason}

allow(rule, reason, credentials) := {
	"verdict": "allow",
	"rule": rule,
	"reason": reason,
	"credentials": credentials,
}
