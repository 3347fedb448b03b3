# A static binary and nothing else: no shell, no packages.
#
#	docker build --build-arg VERSION=v0.1.0 -t caddy-dedup .
#
# VERSION is what `caddy-dedup version` says, and may be left out.
FROM golang:1.26 AS build
WORKDIR /src
# The modules change less often than the code: a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The repository's history stays outside, and with it what Go would take the
# version from.
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -tags nobadger,nomysql,nopgx -ldflags "-w -s -X main.version=$VERSION" -o /out/caddy-dedup ./cmd/caddy-dedup
# A place for Caddy's data that its user may write to: the binary cannot make it.
RUN mkdir -p /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/caddy-dedup /usr/bin/caddy-dedup
COPY --from=build --chown=65532:65532 /out/data /data
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/data/config
USER 65532:65532
EXPOSE 8080
VOLUME /data
ENTRYPOINT ["/usr/bin/caddy-dedup"]
CMD ["run", "--config", "/etc/caddy/Caddyfile"]
