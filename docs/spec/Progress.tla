------------------------------ MODULE Progress -----------------------------
(***************************************************************************)
(* Rule R3's "tell, resume, void": after whatever faults the rules allow,  *)
(* the model can still be stepped from.                                    *)
(*                                                                         *)
(* The aggregator is honest here, for one that lies can always stop the    *)
(* rounds.  Hops get cut off and come back with their disk, messages come  *)
(* late, up to |P| - m hops stop for good or collude, and the silos of one *)
(* cohort may leave for good.  At some point the faults end: "calm".  From *)
(* then on every step brings the run nearer to its end, so it is enough    *)
(* to look at the states in which nothing more can be done.                *)
(*                                                                         *)
(* All attempts are on one model; to which round each belongs makes no     *)
(* difference to a fact.                                                   *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
    Honest, Colluding, MinimumHops,
    Cohorts,            \* cohorts that hop 1 may close for
    Losses,             \* hops that may stop for good
    Attempts,           \* attempts before the calm; one more is kept for it
    Spoilt,             \* whether some hop finds in some cohort a seed that does not open
    Leaving             \* whether the silos of one cohort may leave for good

\* The rules, each with a switch.  All TRUE is the protocol.
CONSTANTS
    Tell,               \* an attempt is for the cohort that its hops are bound to
    Resume,             \* an attempt that was given up is completed once its hops are back
    PadsKept,           \* a hop that signed T keeps its pad till it fences or the model is stepped from
    Fences,             \* hops fence attempts that were given up
    Voids,              \* a fact is void once 2m - |P| other hops of its chain have fenced that attempt
    FenceEach,          \* a fence is for one attempt (FALSE: for all attempts up to it)
    AnswerFirst,        \* an attempt opens after its hops have fenced the earlier ones or shown their facts:
    EveryHopAnswers,    \* all of them (FALSE: one that does not answer may be in it all the same)
    SealLast,           \* the aggregator signs T last, and not once it has given the attempt up
    Park,               \* an attempt is parked from when all have signed T (FALSE: when a reveal is heard of)
    SignedFirst         \* a hop reveals after all hops of the chain have signed T

VARIABLES
    unfit,      \* <<hop, cohort>>: the hop cannot complete that cohort; never changes
    up,         \* hops that can be reached
    dead,       \* hops that are lost for good
    opened,     \* the attempts so far: [chain, cohort]
    over,       \* attempts that the aggregator has given up
    signed,     \* per attempt, the hops that have signed T
    sealed,     \* attempts whose T the aggregator has signed
    out,        \* per attempt, the hops that have written the fact and revealed
    lapsed,     \* per attempt, the hops whose clock has taken the pad
    got,        \* per attempt, the hops whose pad has reached the aggregator
    fenced,     \* per attempt, the hops that have fenced it
    gone,       \* cohorts that cannot be had again
    calm
vars == <<unfit, up, dead, opened, over, signed, sealed, out, got, fenced, lapsed, gone, calm>>

Hops == Honest \cup Colluding
Shared == 2 * MinimumHops - Cardinality(Hops)
Tries == 1..(Attempts + 1)
Newest == Len(opened)
Known == 1..Newest

Void(h, a) == Voids /\ Cardinality(fenced[a] \cap (opened[a].chain \ {h})) >= Shared
Bound(h, a) == h \in out[a] /\ ~Void(h, a)
Free(h, cohort) == \A a \in Known : Bound(h, a) => opened[a].cohort = cohort
Ready(a) == opened[a].chain \subseteq signed[a] /\ (SealLast => a \in sealed)
Lost(a) == opened[a].chain \cap (dead \cup Colluding) # {}
\* Parked: fenced only on account of a hop that is lost, unless somebody has fenced it already.
Parked(a) == fenced[a] = {} /\ (IF Park THEN Ready(a) ELSE out[a] \cap up # {})
Done == \E a \in Known : opened[a].chain \subseteq got[a]

Resumable(a) ==
    /\ Resume /\ Ready(a)
    /\ opened[a].chain \subseteq up \ Colluding /\ opened[a].chain \cap (fenced[a] \cup lapsed[a]) = {}
    /\ \A h \in opened[a].chain : Free(h, opened[a].cohort)
Completable(a) ==
    /\ opened[a].chain \subseteq up \ Colluding /\ opened[a].chain \cap (fenced[a] \cup lapsed[a]) = {}
    /\ \A h \in opened[a].chain : Free(h, opened[a].cohort) /\ <<h, opened[a].cohort>> \notin unfit

---------------------------------------------------------------------------

Init ==
    /\ unfit \in IF Spoilt THEN {{pair} : pair \in Honest \X Cohorts} ELSE {{}}
    /\ up = Hops /\ dead = {} /\ opened = <<>> /\ over = {} /\ sealed = {} /\ gone = {} /\ calm = FALSE
    /\ signed = [a \in Tries |-> {}] /\ out = [a \in Tries |-> {}]
    /\ got = [a \in Tries |-> {}] /\ fenced = [a \in Tries |-> {}] /\ lapsed = [a \in Tries |-> {}]

\* Whom an attempt may be for, and over which hops.
MayOpen(chain, cohort) ==
    /\ Newest = 0 \/ Newest \in over
    /\ Cardinality(chain) = MinimumHops /\ chain \subseteq up
    /\ cohort \notin gone
    /\ AnswerFirst => \A a \in Known : 
         chain \cap opened[a].chain \cap (IF EveryHopAnswers THEN Hops ELSE Honest) \subseteq fenced[a] \cup out[a]
    /\ Tell => \A a \in Known, h \in chain : Bound(h, a) => opened[a].cohort = cohort

Open ==
    \E chain \in SUBSET up, cohort \in Cohorts :
        /\ MayOpen(chain, cohort)
        /\ ~calm => Newest < Attempts
        /\ calm => /\ Newest <= Attempts /\ chain \cap Colluding = {}
                   /\ \A h \in chain : <<h, cohort>> \notin unfit  \* that silo was left out, on evidence
                   /\ \A a \in Known : ~Resumable(a)
        /\ opened' = Append(opened, [chain |-> chain, cohort |-> cohort])
        /\ UNCHANGED <<up, dead, over, signed, sealed, out, got, fenced, lapsed, gone, calm>>

Sign(h) ==
    LET a == Newest IN
    /\ a > 0 /\ h \in up /\ h \in opened[a].chain \ (signed[a] \cup fenced[a])
    /\ <<h, opened[a].cohort>> \notin unfit
    /\ signed' = [signed EXCEPT ![a] = @ \cup {h}]
    /\ UNCHANGED <<up, dead, opened, over, sealed, out, got, fenced, lapsed, gone, calm>>

Seal ==
    /\ SealLast /\ Newest > 0 /\ Newest \notin over \cup sealed /\ opened[Newest].chain \subseteq signed[Newest]
    /\ sealed' = sealed \cup {Newest}
    /\ UNCHANGED <<up, dead, opened, over, signed, out, got, fenced, lapsed, gone, calm>>

\* The signatures may come late, and from anybody: also for an attempt that was given up.
Release(h) ==
    \E a \in Known :
        /\ h \in up /\ h \in signed[a] \ (out[a] \cup fenced[a] \cup lapsed[a])
        /\ SignedFirst => Ready(a)
        /\ h \in Honest => Free(h, opened[a].cohort)
        /\ calm /\ a \in over => Resumable(a)
        /\ out' = [out EXCEPT ![a] = @ \cup {h}]
        /\ UNCHANGED <<up, dead, opened, over, signed, sealed, got, fenced, lapsed, gone, calm>>

Deliver(h) ==
    \E a \in Known :
        /\ h \in up /\ h \in out[a] \ (got[a] \cup lapsed[a])
        /\ got' = [got EXCEPT ![a] = @ \cup {h}]
        /\ UNCHANGED <<up, dead, opened, over, signed, sealed, out, fenced, lapsed, gone, calm>>

GiveUp ==
    /\ Newest > 0 /\ Newest \notin over /\ ~Done
    /\ calm => ~Completable(Newest)
    /\ over' = over \cup {Newest}
    /\ UNCHANGED <<up, dead, opened, signed, sealed, out, got, fenced, lapsed, gone, calm>>

Fence(h) ==
    \E a \in over :
        /\ Fences /\ h \in up /\ h \in opened[a].chain \ (out[a] \cup fenced[a])
        /\ FenceEach \/ \A b \in 1..a : h \notin out[b]
        /\ Parked(a) => Lost(a)
        /\ calm => ~Resumable(a)
        /\ fenced' = [fenced EXCEPT ![a] = @ \cup {h}]
        /\ UNCHANGED <<up, dead, opened, over, signed, sealed, out, got, lapsed, gone, calm>>

\* A colluding hop says that it has fenced, whether it has revealed or not.
FalseFence(h) ==
    \E a \in over :
        /\ h \in opened[a].chain \ fenced[a]
        /\ fenced' = [fenced EXCEPT ![a] = @ \cup {h}]
        /\ UNCHANGED <<up, dead, opened, over, signed, sealed, out, got, lapsed, gone, calm>>

Cut(h) == h \in up /\ up' = up \ {h} /\ UNCHANGED <<dead, opened, over, signed, sealed, out, got, fenced, lapsed, gone, calm>>
Return(h) ==
    /\ h \notin up \cup dead /\ up' = up \cup {h}
    /\ UNCHANGED <<dead, opened, over, signed, sealed, out, got, fenced, lapsed, gone, calm>>
Die(h) ==
    /\ h \notin dead /\ Cardinality(dead \cup Colluding) < Losses
    /\ dead' = dead \cup {h} /\ up' = up \ {h}
    /\ UNCHANGED <<opened, over, signed, sealed, out, got, fenced, lapsed, gone, calm>>
Lapse(h) ==
    \E a \in over :
        /\ ~PadsKept /\ h \in signed[a] \ lapsed[a]
        /\ lapsed' = [lapsed EXCEPT ![a] = @ \cup {h}]
        /\ UNCHANGED <<up, dead, opened, over, signed, sealed, out, got, fenced, gone, calm>>
Leave ==
    /\ Leaving /\ gone = {} /\ \E cohort \in Cohorts : gone' = {cohort}
    /\ UNCHANGED <<up, dead, opened, over, signed, sealed, out, got, fenced, lapsed, calm>>
Calm ==
    /\ ~calm /\ calm' = TRUE /\ up' = Hops \ dead
    /\ UNCHANGED <<dead, opened, over, signed, sealed, out, got, fenced, lapsed, gone>>

Step == Open \/ Seal \/ GiveUp \/ \E h \in Honest : Sign(h) \/ Release(h) \/ Deliver(h) \/ Fence(h)
Trouble ==
    \/ Leave \/ Calm
    \/ \E h \in Colluding : Sign(h) \/ Release(h) \/ Deliver(h) \/ FalseFence(h)
    \/ \E h \in Honest : Cut(h) \/ Return(h) \/ Die(h) \/ Lapse(h)

Next == ~Done /\ (Step \/ (~calm /\ Trouble)) /\ UNCHANGED unfit
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ WF_vars(Next /\ calm)

---------------------------------------------------------------------------

(***************************************************************************)
(* The loss that R3 admits under "stuck": a hop is bound to a cohort that  *)
(* cannot be had again, and of that attempt's chain a hop is lost.         *)
(***************************************************************************)
Conceded == \E a \in Known, h \in Honest : Bound(h, a) /\ opened[a].cohort \in gone /\ Lost(a)

NeverStuck == calm /\ ~ENABLED Next => Done \/ Conceded

\* The same as a temporal property: after the faults have ended, a round is applied.
Applies == calm ~> (Done \/ Conceded)

\* Nobody lies, so all who are bound are bound to one cohort.
BoundAlike ==
    \A a, b \in Known, g, h \in Honest : Bound(g, a) /\ Bound(h, b) => opened[a].cohort = opened[b].cohort

Symmetry == Permutations(Honest) \cup Permutations(Cohorts)
=============================================================================
