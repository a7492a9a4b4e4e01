"""Adapters, one folder an engine; what they share lies beside them, under the same names.

A file of an adapter holds what is true of its engine alone; its part in a fleet is `fleet`. What
is true of all of them is here: `options` and `modes` (what users may ask for), `refusals`,
`certificates` and `isolation` (what is allowed), `plan_cuts`, `probing` and `rotary` (what is
loaded), `held_contents` (what is kept), `counters`, `audit` and `findings` (what is said), and
`ladder`, segmented reuse where an engine gives no access to its model (`ladder_desk` and
`ladder_socket` where its API has no room for our words).
"""
