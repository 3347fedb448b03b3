package file

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// The check must pass every file that bbolt itself has written, whatever was put in
// and taken out.
func TestSoundFilesPassTheCheck(t *testing.T) {
	for seed := range uint64(4) {
		path := filepath.Join(t.TempDir(), "keys.db")
		db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, FreelistType: bolt.FreelistMapType})
		if err != nil {
			t.Fatal(err)
		}
		if err := initialise(db); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(5, seed))
		value := make([]byte, 64<<10)
		var names [][]byte
		for round := range 400 {
			growing := round/100%2 == 0 // two times filled, two times emptied
			err := db.Update(func(tx *bolt.Tx) error {
				for range 1 + random.IntN(60) {
					b := tx.Bucket([][]byte{recordsBucket, responsesBucket}[random.IntN(2)])
					if len(names) > 0 && random.IntN(10) < 3 == growing {
						n := random.IntN(len(names))
						name := names[n]
						names[n] = names[len(names)-1]
						names = names[:len(names)-1]
						for _, b := range [][]byte{recordsBucket, responsesBucket} {
							if err := tx.Bucket(b).Delete(name); err != nil {
								return err
							}
						}
						continue
					}
					name := make([]byte, 1+random.IntN(40))
					for i := range name {
						name[i] = byte(random.Uint32())
					}
					names = append(names, name)
					size := random.IntN(300)
					if random.IntN(20) == 0 {
						size = random.IntN(len(value))
					}
					if err := b.Put(name, value[:size]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if round%10 > 0 {
				continue
			}
			if lost, err := checkStructure(file, int64(db.Info().PageSize)); err != nil || lost {
				t.Fatalf("seed %d, transaction %d, %d keys: %v, lost %v", seed, round, len(names), err, lost)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
