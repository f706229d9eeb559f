# Budgets: how much a sandbox may do in a while, from `data.budgets`, which has defaults.
#
#   "budgets": {"requests": {"1m": 6000}, "not_found": {"1h": 500}, "distinct_names": {"1h": 2000}, "denied": {}, "bytes_out": {}}
package wallgate

import rego.v1

refusals contains deny("budget.exceeded", sprintf("The sandbox's budget for %s in %s is used up. Wait, or quit if the task cannot be done within it.", [measure, window])) if {
	some measure, windows in data.budgets
	some window, most in windows
	input.usage[measure][window] > most
}
