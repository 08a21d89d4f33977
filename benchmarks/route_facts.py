"""Facts to be found again, made at run time: planted sentences, and questions about them.

A fact is about a place (with a made-up name, and a description in other words) and has a made-up
value. Every kind of fact is planted for every place, so each has decoys of its own format, and of
its own place. A literal question uses the fact's words. A paraphrased one shares none with it that
says anything: neither name nor noun nor verb.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_PLACES = {
    "bakery": "business that sells bread and cakes",
    "lighthouse": "coastal tower whose beacon guides ships",
    "orchard": "farm of apple and pear trees",
    "observatory": "place with telescopes for astronomers",
    "cinema": "theatre that shows movies",
    "pharmacy": "drugstore that sells medicine",
    "kennel": "home for stray dogs",
    "vineyard": "estate that makes wine",
    "aquarium": "exhibition of living fish",
    "sawmill": "plant that cuts timber",
    "monastery": "house where monks live",
    "hospital": "clinic for sick patients",
    "brewery": "maker of beer",
    "prison": "jail for convicted criminals",
    "kindergarten": "preschool for small children",
    "airfield": "small airport for light planes",
}

# The sentence, the literal question, and the paraphrased one.
_KINDS = {
    "key": (
        "The spare key of {name} {place} hangs behind the {value} painting.",
        "Where does the spare key of {name} {place} hang?",
        "Where can one find the extra key for the {other}?",
    ),
    "founder": (
        "{name} {place} was founded by {value}.",
        "Who founded {name} {place}?",
        "Who established the {other}?",
    ),
    "staff": (
        "{name} {place} employs {number} people.",
        "How many people does {name} {place} employ?",
        "How large is the workforce of the {other}?",
    ),
    "roof": (
        "The roof of {name} {place} is covered with {value} tiles.",
        "Which tiles cover the roof of {name} {place}?",
        "What kind of shingles lie on top of the {other}?",
    ),
    "closed": (
        "{name} {place} stays closed every year during the feast of {value}.",
        "During which feast does {name} {place} stay closed every year?",
        "On which annual holiday is the {other} not open?",
    ),
    "insurer": (
        "{name} {place} is insured against fire with {value}.",
        "With whom is {name} {place} insured against fire?",
        "Which company would pay if flames destroyed the {other}?",
    ),
    "code": (
        "The gate of {name} {place} opens with the code {number}.",
        "Which code opens the gate of {name} {place}?",
        "Which digits unlock the entrance of the {other}?",
    ),
    "debt": (
        "{name} {place} owes {number} crowns to {value}.",
        "How many crowns does {name} {place} owe?",
        "How much debt does the {other} have?",
    ),
}
_HELD_BACK = 8  # facts that are asked for and not planted: kind and place are there, not together


@dataclass(frozen=True)
class Fact:
    """A planted sentence, its value, and its two questions."""

    sentence: str
    value: str
    literal: str
    paraphrased: str


def facts(seed: int) -> tuple[list[Fact], list[Fact]]:
    """The facts to be planted, and those that are only asked for. Names and values are the seed's
    own: nobody knows them beforehand."""
    rng = random.Random(seed)
    made = []
    for place, other in _PLACES.items():
        name = _name(rng)
        for sentence, literal, paraphrased in _KINDS.values():
            value, number = _name(rng), f"{rng.randrange(10_000, 99_999)}"
            words = {"name": name, "place": place, "other": other}
            words |= {"value": value, "number": number}
            answer = number if "{number}" in sentence else value
            forms = [form.format(**words) for form in (sentence, literal, paraphrased)]
            made.append(Fact(forms[0], answer, forms[1], forms[2]))
    rng.shuffle(made)
    return made[_HELD_BACK:], made[:_HELD_BACK]


def _name(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3)).title()


# Questions that Python's own manual answers, asked as people do.
ANSWERED = (
    "How do I catch several kinds of exceptions in one except clause?",
    "What does the yield expression do inside a generator function?",
    "How are default parameter values of a function evaluated?",
    "What is the difference between a class method and a static method?",
    "How can I format a float with two decimal places in a format specification?",
    "What does the nonlocal statement do?",
    "When is the else clause of a while loop executed?",
    "How does a context manager suppress an exception?",
    "How can I delete an item from a list by its index?",
    "Which operators have the lowest precedence?",
    "What happens when an import cannot find the module?",
    "How do I write a string literal that spans several lines?",
    "What is a metaclass used for?",
    "How does pickle restore instances of classes?",
    "What does the method resolution order decide?",
    "Can I compare a set with another for being a subset?",
    "How is the truth value of an object tested?",
    "What are numbers with an imaginary part called and how are they written?",
    "How do I stop in the debugger at a given line?",
    "How can I make an object behave as if it was a function?",
    "What is the result of dividing integers with the floor operator?",
    "How can I loop over two things until one is exhausted?",
    "How are names looked up in nested blocks?",
    "What does a bare raise statement do?",
)

# Questions that it does not answer: about anything, and about other software.
ABSENT = (
    "What is the boiling point of mercury at sea level?",
    "Who won the regional rowing championship last summer?",
    "How many grams of butter does the shortbread recipe need?",
    "Which antibiotic is given first for a kidney infection?",
    "When was the cathedral of Santiago consecrated?",
    "How deep is the harbour of Rotterdam?",
    "Which planet has the shortest day?",
    "What does the midfielder earn per season?",
    "Why do leaves turn red in autumn?",
    "How long may a tenant delay the rent?",
    "Which vaccine do puppies get at eight weeks?",
    "What is the capital of Burkina Faso?",
    "How is Parmesan cheese aged?",
    "Who painted the ceiling of the Sistine Chapel?",
    "What did the minister say about pension reform?",
    "How do bees find their way back to the hive?",
    "What are the side effects of ibuprofen?",
    "Which train goes from Lyon to Turin on Sundays?",
    "How tall was the tallest giraffe?",
    "When should roses be pruned?",
    "Who wrote the opera about the Seville barber?",
    "What is the maximum fine for speeding in a school zone?",
    "How many chromosomes do wolves have?",
    "Which glacier feeds the Rhone?",
)

FOREIGN = (
    "How do I resize an ext4 partition without losing data?",
    "Which port does the PostgreSQL server listen on by default?",
    "How can I add a firewall rule with iptables?",
    "What is the syntax of a crontab entry?",
    "How do I generate an SSH key pair with ed25519?",
    "How do I rebase a git branch onto main?",
    "How can I mount an NFS share at boot?",
    "What is the default spanning tree priority of a Cisco switch?",
    "How do I create a Kubernetes ingress with TLS?",
    "Which CSS property centers a flexbox item?",
    "How is a Rust lifetime annotated on a struct?",
    "What does the SELinux enforcing mode do?",
    "How do I set up RAID 5 with mdadm?",
    "How can I add a swap file in Linux?",
    "How do I renew a Let's Encrypt certificate with certbot?",
    "Which kernel option enables huge pages?",
)
