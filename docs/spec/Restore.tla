------------------------------ MODULE Restore ------------------------------
(***************************************************************************)
(* Rule R2's other half: a round's record comes to count although the      *)
(* aggregator was emptied on the way, hops get cut off, and up to |P| - m  *)
(* of them are lost.  Nobody lies.  (That two records never count for one  *)
(* round, though somebody does, is in Release.)                            *)
(*                                                                         *)
(* A hop countersigns one record per round.  So an emptied aggregator that *)
(* makes another record than in its first life may split the hops for      *)
(* good.                                                                   *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Hops, MinimumHops,
    Losses,         \* hops that may stop for good
    Lives           \* how often the aggregator starts from nothing, the first time included

\* The rules, each with a switch.  All TRUE is the protocol.
CONSTANTS
    ShowPending,    \* hops show also what they countersigned and does not count yet
    HearAll,        \* an emptied aggregator hears every hop that is not lost (FALSE: m of them)
    HeardIsPromise  \* a hop that was heard countersigns nothing from the aggregator's earlier lives

VARIABLES
    up, dead,
    life,       \* the aggregator's present life
    heard,      \* hops that it has heard in it
    offers,     \* <<life, record>>: what it has offered; a fresh record has the number of its life
    promise,    \* disk: per hop, the life in which it was heard last
    signed,     \* disk: per hop, the record that it countersigned, or 0
    stored,     \* disk: per hop, the record that it goes on from, or 0
    calm
vars == <<up, dead, life, heard, offers, promise, signed, stored, calm>>

Records == 1..Lives
Signers(record) == {h \in Hops : signed[h] = record}
Counts(record) == Cardinality(Signers(record)) >= MinimumHops

Init ==
    /\ up = Hops /\ dead = {} /\ life = 1 /\ heard = {} /\ offers = {} /\ calm = FALSE
    /\ promise = [h \in Hops |-> 0] /\ signed = [h \in Hops |-> 0] /\ stored = [h \in Hops |-> 0]

Hear(h) ==
    /\ life > 1 /\ h \in up \ heard
    /\ heard' = heard \cup {h}
    /\ promise' = [promise EXCEPT ![h] = IF HeardIsPromise THEN life ELSE 0]
    /\ UNCHANGED <<up, dead, life, offers, signed, stored, calm>>

HeardEnough == IF life = 1 THEN TRUE ELSE IF HearAll THEN Hops \ dead \subseteq heard ELSE Cardinality(heard) >= MinimumHops
Seen == IF ShowPending THEN {signed[h] : h \in heard} \ {0} ELSE {r \in Records : Counts(r)}

Offer ==
    /\ HeardEnough /\ \A offer \in offers : offer[1] # life
    /\ \E record \in (IF Seen = {} THEN {life} ELSE Seen) : offers' = offers \cup {<<life, record>>}
    /\ UNCHANGED <<up, dead, life, heard, promise, signed, stored, calm>>

\* An offer of an earlier life may still be on its way.
Countersign(h) ==
    \E offer \in offers :
        /\ h \in up /\ signed[h] = 0 /\ offer[1] >= promise[h]
        /\ signed' = [signed EXCEPT ![h] = offer[2]]
        /\ UNCHANGED <<up, dead, life, heard, offers, promise, stored, calm>>

\* A record that counts is stored by every hop, also by one that had countersigned another.
Store(h) ==
    \E record \in Records :
        /\ h \in up /\ stored[h] = 0 /\ Counts(record)
        /\ stored' = [stored EXCEPT ![h] = record]
        /\ UNCHANGED <<up, dead, life, heard, offers, promise, signed, calm>>

Empty ==
    /\ life < Lives /\ life' = life + 1 /\ heard' = {}
    /\ UNCHANGED <<up, dead, offers, promise, signed, stored, calm>>
Cut(h) == h \in up /\ up' = up \ {h} /\ UNCHANGED <<dead, life, heard, offers, promise, signed, stored, calm>>
Return(h) ==
    /\ h \notin up \cup dead /\ up' = up \cup {h}
    /\ UNCHANGED <<dead, life, heard, offers, promise, signed, stored, calm>>
Die(h) ==
    /\ h \notin dead /\ Cardinality(dead) < Losses
    /\ dead' = dead \cup {h} /\ up' = up \ {h}
    /\ UNCHANGED <<life, heard, offers, promise, signed, stored, calm>>
Calm ==
    /\ ~calm /\ calm' = TRUE /\ up' = Hops \ dead
    /\ UNCHANGED <<dead, life, heard, offers, promise, signed, stored>>

Step == Offer \/ \E h \in Hops : Hear(h) \/ Countersign(h) \/ Store(h)
Trouble == Empty \/ Calm \/ \E h \in Hops : Cut(h) \/ Return(h) \/ Die(h)
Next == Step \/ (~calm /\ Trouble)
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Step /\ calm)

AllGoOn == \E record \in Records : \A h \in Hops \ dead : stored[h] = record

NeverStuck == calm /\ ~ENABLED Next => AllGoOn
GoesOn == calm ~> AllGoOn
Symmetry == Permutations(Hops)
=============================================================================
