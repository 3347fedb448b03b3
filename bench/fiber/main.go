// Command fiber is Fiber's idempotency middleware on Redis, in front of Fiber's own proxy:
// what others have to compare with. The benchmark beside it starts it.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/proxy"
	"github.com/gofiber/storage/redis/v3"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "the address to serve")
	upstream := flag.String("upstream", "http://127.0.0.1:3000", "the service behind")
	store := flag.String("redis", "redis://127.0.0.1:6379", "where responses are kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *upstream, *store); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, listen, upstream, store string) error {
	storage := redis.New(redis.Config{URL: store})
	defer func() { _ = storage.Close() }() // it has nothing left to write
	app := fiber.New(fiber.Config{BodyLimit: 8 << 20})
	app.Use(idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key",
		Lifetime:  7 * 24 * time.Hour,
		Storage:   storage,
	}))
	app.Use(proxy.Balancer(proxy.Config{Servers: []string{upstream}, Timeout: 30 * time.Second}))
	return app.Listen(listen, fiber.ListenConfig{DisableStartupMessage: true, GracefulContext: ctx, ShutdownTimeout: time.Second})
}
