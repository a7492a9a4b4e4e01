"""The vocabulary of the synthetic profile: four trades, each with its own words and frames.

Frames of different trades share no run of words long enough to matter, so a document of
one trade is an honest negative control for a document of another.
Slots: {name} a proper noun, {who} a person's role, {thing}, {place}, {when}, {n}.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """Words and sentence frames of one trade."""

    title: str
    who: tuple[str, ...]
    thing: tuple[str, ...]
    place: tuple[str, ...]
    when: tuple[str, ...]
    frames: tuple[str, ...]


TRADES: dict[str, Trade] = {
    "synthetic_harbour": Trade(
        title="Harbour log of {name}",
        who=("pilot", "dockmaster", "crane driver", "customs clerk", "tug captain", "diver"),
        thing=(
            "mooring line",
            "grain cargo",
            "reefer container",
            "gangway",
            "bilge pump",
            "anchor chain",
            "ballast report",
            "radar mast",
        ),
        place=("north quay", "dry dock", "fuel jetty", "outer basin", "ferry slip", "lock gate"),
        when=(
            "before slack water",
            "on the ebb",
            "after the fog lifted",
            "at first light",
            "during the neap tide",
            "past midnight",
        ),
        frames=(
            "The {who} of the {name} inspected every {thing} near the {place} {when}.",
            "{when}, {n} tonnes were swung ashore while the {who} watched the {thing}.",
            "A leaking {thing} kept the {name} at the {place} for {n} hours.",
            "Nobody berthed beside the {place} because the {who} had condemned its {thing}.",
            "Wind pushed the {name} towards the {place}, so the {who} let go a {thing}.",
            "The {who} signed for {n} crates and blamed a frayed {thing} {when}.",
            "Two hulls, the {name} among them, shared the {place} {when}.",
            "Port dues for a {thing} rose by {n} crowns, as the {who} had feared.",
            "{when} the {who} sounded {n} fathoms off the {place}.",
            "Repairs to the {thing} were billed to the owners of the {name}.",
        ),
    ),
    "synthetic_greenhouse": Trade(
        title="Notes on the {name} glasshouses",
        who=("head gardener", "botanist", "apprentice", "seed keeper", "plant doctor", "beekeeper"),
        thing=(
            "tomato graft",
            "humidity probe",
            "orchid bench",
            "irrigation valve",
            "leaf sample",
            "compost bin",
            "grow lamp",
            "pollen trap",
        ),
        place=(
            "fern house",
            "propagation room",
            "cactus wing",
            "potting shed",
            "roof terrace",
            "cold frame",
        ),
        when=(
            "once the vents had opened",
            "in the second week of spring",
            "under full shade",
            "when frost was forecast",
            "between two waterings",
            "late in the season",
        ),
        frames=(
            "Seedlings of the {name} strain doubled in height {when}, wrote the {who}.",
            "Every {thing} in the {place} was relabelled {when} by a careful {who}.",
            "At {n} degrees the {thing} stopped responding and the {who} fetched another.",
            "The {who} prefers the {place} for cuttings, provided its {thing} stays dry.",
            "Mildew spared the {place} but ruined {n} trays around the {thing}.",
            "{when} a {who} from {name} asked to borrow our best {thing}.",
            "Of {n} bulbs planted close to the {place}, most flowered {when}.",
            "Because the {thing} dripped, moss spread across the {place} within {n} days.",
            "Our {who} grafted {name} scions onto wild roots {when}.",
            "Readings from that {thing} drifted, hence the new one ordered for the {place}.",
        ),
    ),
    "synthetic_railway": Trade(
        title="Line diary, {name} district",
        who=("signaller", "track walker", "driver", "timetable planner", "welder", "guard"),
        thing=(
            "point motor",
            "axle counter",
            "level crossing",
            "catenary wire",
            "ballast wagon",
            "brake pad",
            "relay cabinet",
            "sleeper batch",
        ),
        place=("junction box", "goods yard", "tunnel mouth", "viaduct", "turntable", "halt"),
        when=(
            "ahead of the night freight",
            "after the timetable change",
            "in heavy rain",
            "with traffic stopped",
            "on a summer Sunday",
            "minutes before the express",
        ),
        frames=(
            "Trains through {name} were held {n} minutes when a {thing} failed {when}.",
            "The {who} clamped the {thing} by hand and waved the {name} service past the {place}.",
            "{when}, heat bent the rails beyond the {place}, said the {who}.",
            "Speed across the {place} is capped at {n} until the {thing} is renewed.",
            "One {who} walked {n} kilometres from the {place} to find a cracked {thing}.",
            "Spare parts for each {thing} now travel with the {who} {when}.",
            "A fallen branch on the {place} cost {name} its connection {when}.",
            "The {who} logged {n} alarms, all from the same {thing}.",
            "Goods for {name} wait in the siding behind the {place} {when}.",
            "Since the {thing} was rewired, the {who} trusts the {place} again.",
        ),
    ),
    "synthetic_archive": Trade(
        title="Reading-room bulletin of {name}",
        who=(
            "conservator",
            "cataloguer",
            "visiting scholar",
            "bookbinder",
            "palaeographer",
            "photographer",
        ),
        thing=(
            "vellum charter",
            "ledger",
            "map case",
            "microfilm reel",
            "wax seal",
            "letter bundle",
            "parish register",
            "glass negative",
        ),
        place=(
            "strongroom",
            "map gallery",
            "east stacks",
            "quarantine shelf",
            "lecture hall",
            "digitisation studio",
        ),
        when=(
            "under dimmed light",
            "at the donor's wish",
            "with gloves on",
            "over the winter break",
            "following a small flood",
            "for the spring exhibition",
        ),
        frames=(
            "A {thing} from {name} was unrolled {when}, to the delight of a {who}.",
            "Folio {n} of that {thing} is missing, which puzzled our {who}.",
            "{when} the {who} moved {n} boxes out of the {place}.",
            "Ink on the {thing} had faded, yet a {who} could read the word {name}.",
            "Requests concerning the {place} go to the {who}, never by telephone.",
            "Damp reached the {place}; {n} items, one {thing} included, are drying.",
            "The estate of {name} lent us its {thing} {when}.",
            "A {who} dated the {thing} to within {n} years, citing its watermark.",
            "Visitors may photograph any {thing} kept in the {place} {when}.",
            "Shelf-marks beginning with {n} now point from the {place} to {name}.",
        ),
    ),
}
