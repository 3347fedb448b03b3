package delivery

// Kinds returns the kinds that the IDs of a source can have.
func (s Source) Kinds() []string {
	if s.Kind == KindJSON {
		return []string{KindJSON, kindJSONNumber}
	}
	return []string{s.Kind}
}
