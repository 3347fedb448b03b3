// The page in a real browser, apart from the product's own requirements.
module github.com/caddy-dedup/caddy-dedup/integration/browser

go 1.26.0

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
