------------------------------ MODULE Release ------------------------------
(***************************************************************************)
(* Rules R1, R2, R3 and R5 against an aggregator that lies and hops that   *)
(* collude with it.  What must never happen, whatever they do:             *)
(*   - two cohorts learned for one model, or one below the minimum,        *)
(*   - one model stepped from twice.                                       *)
(*                                                                         *)
(* The aggregator and the colluding hops are one adversary.  It carries    *)
(* all messages, so it may withhold, reorder, repeat, and tell each honest *)
(* node another story.  It cannot forge an honest hop's signature.  So the *)
(* state is what the honest nodes have on disk and in memory, and what     *)
(* they have said; all the rest is chosen anew at each step.               *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Honest,             \* hops that keep to the rules; they crash, and come back with their disk
    Colluding,          \* hops that sign anything, reveal anything, and forget what they like
    MinimumHops,        \* m
    Cohorts,            \* cohorts that have the minimum of silos
    Tiny,               \* cohorts that do not
    Rounds,             \* bounds of the search: rounds,
    Attempts,           \* attempts in each,
    Records,            \* records in the log,
    LongChains,         \* whether chains of more than m hops are tried,
    Fine                \* and whether every step of a hop is one of its own: see Meet and Release

\* The rules, each with a switch.  All TRUE is the protocol.
CONSTANTS
    DurableFirst,       \* a hop reveals after the release fact is on disk
    SignedFirst,        \* a hop reveals after all hops of the chain have signed T
    FactsByModel,       \* facts are kept by model (FALSE: by round number)
    FactsPerAttempt,    \* a fact names every attempt it was released in (FALSE: the first alone)
    FencesHold,         \* a fence destroys the pad, durably
    VoidByEnough,       \* a fact is void after 2m - |P| fences of others (FALSE: after one fewer)
    Linked,             \* rounds and records link to the head that a node knows
    Lineage,            \* silos take the model that they computed, no other
    MinimumKept,        \* hops refuse a cohort below the minimum
    OneCountersignature,\* a hop countersigns one record per round
    CountedFirst        \* silos take a step after its record counts (FALSE: when they have the pads)

VARIABLES
    joined,     \* disk: per hop, the passages whose cohort, pad and T it has written down and signed
    pending,    \* memory: per hop, the passage whose release fact is not on disk yet
    facts,      \* disk: per hop, release facts, each with the passage that it stems from
    pads,       \* per hop, the passages whose pad it has revealed: the adversary has it for good
    fences,     \* disk: per hop, the attempts that it has fenced
    head,       \* disk: per hop, the newest record that it has stored
    signed,     \* disk: per hop, the records that it has countersigned
    silo        \* disk: the newest record that the silos have taken
vars == <<joined, pending, facts, pads, fences, head, signed, silo>>

Hops == Honest \cup Colluding
Chains == {c \in SUBSET Hops : Cardinality(c) >= MinimumHops /\ (LongChains \/ Cardinality(c) = MinimumHops)}
Shared == 2 * MinimumHops - Cardinality(Hops)  \* any two chains share as many hops

(***************************************************************************)
(* A record stands for the whole history that its digest commits to: the   *)
(* sequence of outcomes, a cohort that was applied or "abandoned".  The    *)
(* model after it is what was applied, in order.                           *)
(***************************************************************************)
Abandoned == "abandoned"
Outcomes == Cohorts \cup Tiny \cup {Abandoned}
Histories(n) == IF n = 0 THEN {<<>>} ELSE [1..n -> Outcomes]
Model(history) == SelectSeq(history, LAMBDA outcome : outcome # Abandoned)
Front(history) == SubSeq(history, 1, Len(history) - 1)
Last(history) == history[Len(history)]
IsPrefix(short, long) == Len(short) <= Len(long) /\ short = SubSeq(long, 1, Len(short))

(***************************************************************************)
(* A passage is an attempt as one hop took part in it: a manifest and a    *)
(* cohort, which is also what T covers.  `twin` marks a manifest whose     *)
(* model differs from the true one by an ulp: another digest, but the same *)
(* updates.                                                                *)
(***************************************************************************)
Passage(t, a, history, chain, twin, cohort) ==
    [round |-> t, attempt |-> a, head |-> history, chain |-> chain, twin |-> twin, cohort |-> cohort]
Slot(p) == <<p.round, p.attempt>>
Key(p) == IF FactsByModel THEN <<Model(p.head), p.twin>> ELSE <<p.round>>

Counts(record) ==
    record = <<>> \/ Cardinality({h \in Honest : record \in signed[h]}) + Cardinality(Colluding) >= MinimumHops
Counted == {record \in UNION {signed[h] : h \in Honest} : Counts(record)}

Learned == {p \in UNION {pads[h] : h \in Honest} : \A h \in p.chain \cap Honest : p \in pads[h]}
Ready(p) == \A h \in p.chain \cap Honest : p \in joined[h]

Void(h, fact) ==
    Cardinality({g \in fact.chain \ {h} : g \in Colluding \/ Slot(fact) \in fences[g]})
        >= (IF VoidByEnough THEN Shared ELSE Shared - 1)
Free(h, p) == \A fact \in facts[h] : Key(fact) = Key(p) => fact.cohort = p.cohort \/ Void(h, fact)
Fenced(h, slot) == FencesHold /\ slot \in fences[h]

---------------------------------------------------------------------------

Init ==
    /\ joined = [h \in Honest |-> {}]
    /\ pending = [h \in Honest |-> {}]
    /\ facts = [h \in Honest |-> {}]
    /\ pads = [h \in Honest |-> {}]
    /\ fences = [h \in Honest |-> {}]
    /\ head = [h \in Honest |-> <<>>]
    /\ signed = [h \in Honest |-> {}]
    /\ silo = <<>>

(***************************************************************************)
(* Bulk and Ready.  The hop writes cohort and pad down, and signs T; till  *)
(* it has signed, nothing leaves it that can be read.  One manifest and    *)
(* cohort per attempt, and the attempt is its newest.                      *)
(***************************************************************************)
Offers(h) ==
    {p \in UNION {{Passage(Len(history) + 1, a, history, chain, twin, cohort) :
                     a \in 1..Attempts, chain \in {c \in Chains : h \in c},
                     twin \in (IF Lineage THEN {FALSE} ELSE BOOLEAN),
                     cohort \in (IF MinimumKept THEN Cohorts ELSE Cohorts \cup Tiny)} :
                   history \in (IF Linked THEN {head[h]} ELSE UNION {Histories(n) : n \in 0..(Rounds - 1)})} :
        p.round <= Rounds}
Joins(h, p) ==
    /\ IF Linked THEN head[h] = p.head /\ Counts(p.head) /\ IsPrefix(p.head, silo)  \* silos' bodies name the manifest
                 ELSE p.round > Len(head[h])
    /\ \A q \in joined[h] : q.round < p.round \/ (q.round = p.round /\ q.attempt < p.attempt)
    /\ ~Fenced(h, Slot(p))

Join(h) ==
    \E p \in Offers(h) :
        /\ Fine /\ Joins(h, p)
        /\ joined' = [joined EXCEPT ![h] = @ \cup {p}]
        /\ UNCHANGED <<pending, facts, pads, fences, head, signed, silo>>

(* Coarsely, all honest hops of the chain at once: before the last of them has signed nothing follows from it. *)
Meet ==
    \E p \in UNION {Offers(h) : h \in Honest} :
        /\ ~Fine /\ \A g \in p.chain \cap Honest : Joins(g, p)
        /\ joined' = [g \in Honest |-> IF g \in p.chain THEN joined[g] \cup {p} ELSE joined[g]]
        /\ UNCHANGED <<pending, facts, pads, fences, head, signed, silo>>

(***************************************************************************)
(* All signatures over T have come in: the hop makes the release fact in   *)
(* memory, writes it to disk, and reveals the pad.  Coarsely, these are    *)
(* one step: a crash before the write undoes it, one after it changes      *)
(* nothing, and a pad that is out serves the adversary better.             *)
(***************************************************************************)
MayRelease(h, p) ==
    /\ p \in joined[h] \ (facts[h] \cup pads[h])
    /\ pending[h] = {}
    /\ ~Fenced(h, Slot(p))
    /\ SignedFirst => Ready(p)
    /\ Free(h, p)

Noted(h, p) ==
    IF ~FactsPerAttempt /\ \E fact \in facts[h] : Key(fact) = Key(p) /\ fact.cohort = p.cohort
    THEN facts[h] ELSE facts[h] \cup {p}

Release(h) ==
    \E p \in joined[h] :
        /\ ~Fine /\ MayRelease(h, p)
        /\ facts' = [facts EXCEPT ![h] = Noted(h, p)]
        /\ pads' = [pads EXCEPT ![h] = @ \cup {p}]
        /\ UNCHANGED <<joined, pending, fences, head, signed, silo>>

Decide(h) ==
    \E p \in joined[h] :
        /\ Fine /\ MayRelease(h, p)
        /\ pending' = [pending EXCEPT ![h] = {p}]
        /\ UNCHANGED <<joined, facts, pads, fences, head, signed, silo>>

Persist(h) ==
    \E p \in pending[h] :
        /\ pending' = [pending EXCEPT ![h] = {}]
        /\ facts' = [facts EXCEPT ![h] = Noted(h, p)]
        /\ pads' = [pads EXCEPT ![h] = IF p \in Noted(h, p) THEN @ ELSE @ \cup {p}]  \* the old fact covers it
        /\ UNCHANGED <<joined, fences, head, signed, silo>>

Reveal(h) ==
    \E p \in (IF DurableFirst THEN facts[h] ELSE facts[h] \cup pending[h]) \ pads[h] :
        /\ pads' = [pads EXCEPT ![h] = @ \cup {p}]
        /\ UNCHANGED <<joined, pending, facts, fences, head, signed, silo>>

(* What was in memory alone is lost. *)
Crash(h) ==
    /\ pending[h] # {}
    /\ pending' = [pending EXCEPT ![h] = {}]
    /\ UNCHANGED <<joined, facts, pads, fences, head, signed, silo>>

(* Nothing was revealed for this attempt, and nothing will be.  A fence is only tried where it could void a fact: *)
(* before, it does no more than a hop that stays silent. *)
Fence(h) ==
    \E t \in 1..Rounds, a \in 1..Attempts :
        /\ <<t, a>> \notin fences[h]
        /\ \E g \in Honest \ {h} : \E p \in facts[g] : Slot(p) = <<t, a>> /\ h \in p.chain
        /\ \A p \in facts[h] \cup pads[h] \cup pending[h] : Slot(p) # <<t, a>>
        /\ fences' = [fences EXCEPT ![h] = @ \cup {<<t, a>>}]
        /\ UNCHANGED <<joined, pending, facts, pads, head, signed, silo>>

(***************************************************************************)
(* The aggregator offers a record, and the hop stores and countersigns it. *)
(* An applied record shows the pads of an attempt on that model, be it     *)
(* from an earlier round; an abandoned one shows nothing.  Pads outlive    *)
(* the record here: nothing that must hold relies on their being deleted.  *)
(***************************************************************************)
Steps(history) == {p.cohort : p \in {q \in Learned : Model(q.head) = Model(history)}}

Countersign(h) ==
    \E history \in IF ~Linked THEN UNION {Histories(n) : n \in 0..(Records - 1)}
                   ELSE IF OneCountersignature \/ head[h] = <<>> THEN {head[h]} ELSE {head[h], Front(head[h])} :
      \E outcome \in {Abandoned} \cup Steps(history) :
        LET record == Append(history, outcome) IN
        /\ Len(record) <= Records /\ Len(record) >= Len(head[h])
        /\ Linked => Counts(history)
        /\ IF OneCountersignature THEN \A other \in signed[h] : Len(other) # Len(record) ELSE record \notin signed[h]
        /\ signed' = [signed EXCEPT ![h] = @ \cup {record}]
        /\ head' = [head EXCEPT ![h] = record]
        /\ pending' = [pending EXCEPT ![h] = {}]
        /\ UNCHANGED <<joined, facts, pads, fences, silo>>

(* A record that counts is stored by every hop, also by one that countersigned another which does not. *)
Adopt(h) ==
    \E record \in Counted :
        /\ record # head[h] /\ Len(record) >= Len(head[h])
        /\ Linked => IsPrefix(Front(record), head[h])
        /\ Len(record) = Len(head[h]) => ~Counts(head[h])
        /\ head' = [head EXCEPT ![h] = record]
        /\ pending' = [pending EXCEPT ![h] = {}]
        /\ UNCHANGED <<joined, facts, pads, fences, signed, silo>>

SiloTakes ==
    \E record \in Counted \cup (IF CountedFirst THEN {} ELSE {Append(silo, c) : c \in Steps(silo)}) :
        /\ Len(record) = Len(silo) + 1
        /\ Linked => Front(record) = silo
        /\ silo' = record
        /\ UNCHANGED <<joined, pending, facts, pads, fences, head, signed>>

Next ==
    \/ Meet \/ SiloTakes
    \/ \E h \in Honest :
         \/ Join(h) \/ Release(h) \/ Decide(h) \/ Persist(h) \/ Reveal(h) \/ Crash(h) \/ Fence(h)
         \/ Countersign(h) \/ Adopt(h)

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* What must hold. *)

\* R3: sums over two cohorts of one model give their difference.  A twin gives it too.
OneCohortPerModel ==
    \A p, q \in Learned : Model(p.head) = Model(q.head) => p.cohort = q.cohort

NoneBelowMinimum == \A p \in Learned : p.cohort \in Cohorts

\* R3: a pad is out only where every honest hop of the chain had signed the same T; until then the model is free.
ReadyBeforeReveal == \A h \in Honest : \A p \in facts[h] \cup pads[h] : Ready(p)

\* R2: records that count are one history, and the silos follow it,
OneHistory == \A one \in Counted, other \in Counted \cup {silo} : IsPrefix(one, other) \/ IsPrefix(other, one)

\* in which no model is stepped from twice.
AppliedOnce ==
    \A one, other \in {r \in Counted : Last(r) # Abandoned} : Model(Front(one)) = Model(Front(other)) => one = other

---------------------------------------------------------------------------
(* What must be possible, lest the rest hold for want of anything happening: each of these has to fail. *)

NeverTwoSteps == ~(Len(silo) = 2 /\ Abandoned \notin {silo[1], silo[2]} /\ silo[1] # silo[2])
NeverAfterAbandoned == ~(Len(silo) = 2 /\ silo[1] = Abandoned /\ silo[2] # Abandoned)
NeverVoid == \A h \in Honest : \A f, g \in facts[h] : Key(f) = Key(g) => f.cohort = g.cohort

Symmetry == Permutations(Honest) \cup Permutations(Colluding) \cup Permutations(Cohorts)
=============================================================================
