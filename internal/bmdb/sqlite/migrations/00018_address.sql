-- Which machines have an address: two providers may have one host.

-- +goose Up
CREATE INDEX fact_provided_address ON fact_provided (address);

-- +goose Down
DROP INDEX fact_provided_address;
