# A static binary, the certificates of public authorities, and nothing else: no shell,
# no packages.
#
#	docker build --build-arg VERSION=v0.1.0 -t caddy-dedup .
#
# VERSION is what `caddy-dedup version` says, REVISION is the commit and CREATED its time
# (RFC 3339). They may be left out. The same source gives the same binary, byte by byte;
# the image is the same, too, with SOURCE_DATE_EPOCH and BuildKit's rewrite-timestamp.

# The compiler runs on the machine that builds, for whatever the image is for.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
ENV GOTOOLCHAIN=local
WORKDIR /src
# The modules change less often than the code: a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The repository's history stays outside, and with it what Go would take the version
# from.
ARG VERSION
ARG TARGETOS
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags nobadger,nomysql,nopgx -ldflags "-w -s -X github.com/caddy-dedup/caddy-dedup.Version=$VERSION" -o /out/caddy-dedup ./cmd/caddy-dedup
# The one place that its user may write to: the binary cannot make it.
RUN mkdir -p /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/caddy-dedup /usr/bin/caddy-dedup
COPY --from=build --chown=65532:65532 /out/data /data
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/data/config
# 8 to 18 % more requests for 8 to 19 MB (docs/costs.md); a memory limit comes first.
ENV GOGC=200
USER 65532:65532
EXPOSE 8080
VOLUME /data
# It asks the admin API. Where that is off, turn this off (--no-healthcheck), and ask
# dedup_health from outside.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["/usr/bin/caddy-dedup", "health"]
ENTRYPOINT ["/usr/bin/caddy-dedup"]
CMD ["run", "--config", "/etc/caddy/Caddyfile"]
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="caddy-dedup" \
	org.opencontainers.image.description="Makes an HTTP service idempotent: duplicates get the response of the first request" \
	org.opencontainers.image.source="https://github.com/caddy-dedup/caddy-dedup" \
	org.opencontainers.image.documentation="https://github.com/caddy-dedup/caddy-dedup/tree/main/docs" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="$VERSION" \
	org.opencontainers.image.revision="$REVISION" \
	org.opencontainers.image.created="$CREATED"
