package storetest

// specification is what a store promises, by the methods of [idempotency.Store]. Each sentence has the test that
// holds it; where several methods are named, the sentence is about all of them.
var specification = []struct {
	methods string
	tests   []subtest
}{
	{"Claim", []subtest{
		{"a fresh key is claimed", freshKey},
		{"the same token again is the same claim", sameToken},
		{"a claim whose context has ended writes nothing", endedContext},
		{"a lapsed lease is taken over", takeover},
		{"a lapsed claim that holds is refused", lapsedHold},
		{"a record in flight outlives its lease", outlivesLease},
		{"a delayed copy of a claim does not run again", delayedCopies},
		{"a forced run over nothing is an ordinary one", forcedOverNothing},
		{"a forced claim that has lapsed is made again by its owner", forcedMadeAgain},
		{"of many concurrent claims of a fresh key one proceeds", oneFresh},
		{"of many concurrent claims of a lapsed lease one proceeds", oneTakeover},
		{"of many concurrent claims of a released key one proceeds", oneAfterRelease},
		{"the same token proceeds however often it is sent at once", oneToken},
	}},
	{"Renew", []subtest{
		{"renew prolongs lease and life", renewProlongs},
	}},
	{"Renew and Settle", []subtest{
		{"a late owner settles unless its claim was taken over", lateButOwner},
		{"a late owner is fenced", fencedOwner},
		{"a claim whose record is gone cannot go on", goneRecord},
		{"a claim that the store lost over an earlier record is gone", lostClaim},
	}},
	{"Settle", []subtest{
		{"a settled key has its record and its response", settledKeys},
		{"retention counts from the settlement", retentionFromSettlement},
		{"a claim that was written again settles with its owner's attempts", settlesWithOwnersAttempts},
		{"a withdrawn claim that was not executed leaves nothing", withdrawsNothing},
		{"of the settlements of a late and a new owner the new owner's stays", racingSettlements},
		{"a forced run's response replaces the kept one", forcedReplaces},
		{"a forced run that keeps nothing leaves the kept response", forcedLeaves},
		{"a forced run that lapsed leaves the kept response", forcedLapses},
		{"a forced run that lapsed over an expired response leaves nothing", forcedLapsesOverExpired},
	}},
	{"Lookup", []subtest{
		{"lookup of an unknown key finds nothing", unknownKey},
	}},
	{"Response", []subtest{
		{"a response comes back as it was", identicalResponses},
		{"requests that waited get the response of a released run", releasedResponse},
		{"a response belongs to its token", responseOfToken},
	}},
	{"Change", []subtest{
		{"release lets a key run again and keeps its history", releaseAnyState},
		{"release after a forced run that lapsed releases the kept response", releaseForced},
		{"complete gives duplicates the operator's response", completeAnyState},
		{"a completed key lives for a day at least", completedLife},
		{"a complete key cannot be completed", completeTwice},
		{"the owner of a lapsed claim is fenced once its key is changed", changedOwner},
	}},
	{"Forget", []subtest{
		{"forget removes a record of any state but in flight", forgetAnyState},
		{"an unreadable record is forgotten only if it is the one that was seen", unreadablePrecondition},
	}},
	{"Change and Forget", []subtest{
		{"a key without a record can be neither changed nor forgotten", operatorWithoutRecord},
		{"a run that is alive can be neither changed nor forgotten", operatorBesideRun},
		{"an operator takes a key only as it was seen", takenWithPrecondition},
		{"a key that has run since it was seen is left alone", runSincePrecondition},
		{"a run that ended after its lease is not what was seen", endedSincePrecondition},
		{"of many operators who have seen the same key one takes it", takenOnce},
		{"of claims and operators at once no run is lost", operatorsAndClaims},
	}},
	{"List", []subtest{
		{"a list leaves out nothing because other keys go", listWhileKeysGo},
		{"a list leaves out nothing because other keys come", listWhileKeysCome},
	}},
	{"Find", []subtest{
		{"find returns the records of several IDs, and no others", findSeveral},
	}},
	{"List and Find", []subtest{
		{"without records there is nothing", listNothing},
		{"pages have every key once, each in the order of its keys", listPages},
		{"a page has the records of every state", listStates},
		{"no expired or forgotten keys are there", listLive},
		{"a record that cannot be read is there as such", listUnreadable},
		{"a cursor that came with no page is an error", wrongCursors},
		{"a page of no records is an error", noPage},
	}},
	{"Subscribe", []subtest{
		{"a waiter is woken when the run ends", wokenAtEnd},
		{"a waiter is woken when an operator changes or forgets the key", wokenByOperator},
		{"an ended subscription is not called", endedSubscription},
	}},
	{"Ready", []subtest{
		{"a store is ready, and says so in time", readiness},
	}},
	{"all", []subtest{
		{"callers share no memory with the store", noAliases},
		{"runs of one key never overlap", exclusiveRuns},
		{"random operations agree with the model", agreesWithModel},
	}},
	// For a store that only one process can have open: after a crash, no run goes on.
	{"after a crash", []subtest{
		{"a claim of a dead process is free at once", crashReleases},
		{"a claim of a dead process that holds is held at once", crashHolds},
		{"a claim of a dead process is counted at once where attempts are limited", crashCounts},
		{"a forced claim of a dead process leaves the kept response", crashLeavesKept},
		{"what was acknowledged survives a crash", crashKeeps},
	}},
}

type subtest struct {
	name string
	run  func(f *fixture)
}
