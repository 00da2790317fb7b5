-- tickets
SELECT id, coalesce(type, '') AS type, coalesce(component, '') AS component,
    coalesce(priority, '') AS priority, coalesce(owner, '') AS owner,
    coalesce(reporter, '') AS reporter, coalesce(cc, '') AS cc, coalesce(version, '') AS version,
    coalesce(milestone, '') AS milestone, coalesce(status, '') AS status,
    coalesce(resolution, '') AS resolution, coalesce(summary, '') AS summary,
    coalesce(description, '') AS description, coalesce(keywords, '') AS keywords
    FROM ticket ORDER BY id

-- comments
SELECT ticket, newvalue AS text FROM ticket_change WHERE field = 'comment' AND newvalue <> ''

-- pages
SELECT name, text FROM wiki w WHERE version = (SELECT max(version) FROM wiki WHERE name = w.name)

-- milestones
SELECT name, completed > 0 AS completed FROM milestone

-- components
SELECT * FROM component

-- versions
SELECT * FROM version

-- permissions
SELECT * FROM permission

-- enums
SELECT * FROM enum

-- reports
SELECT * FROM report

-- attachments
SELECT * FROM attachment
