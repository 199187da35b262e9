-- The table, and triggers that note each of its changes, in the transaction of the change.
PRAGMA journal_mode = WAL;
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL, row TEXT);
CREATE TRIGGER customers_inserted AFTER INSERT ON customers BEGIN
    INSERT INTO changes (id, row) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER customers_updated AFTER UPDATE ON customers BEGIN
    INSERT INTO changes (id) SELECT old.id WHERE old.id <> new.id;
    INSERT INTO changes (id, row) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER customers_deleted AFTER DELETE ON customers BEGIN
    INSERT INTO changes (id) VALUES (old.id);
END;
